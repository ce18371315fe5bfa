"""Edits of PTX, on texts as Triton writes them."""

from __future__ import annotations

import pytest

from plugins import ptx
from trtspec.errors import KernelError

BITS = (64, 32, 64)
TEXT = """\
.version 8.7
.target sm_90a
.address_size 64
\t// .globl\tscale
.extern .shared .align 16 .b8 global_smem[];
.visible .entry scale(
\t.param .u64 .ptr .global .align 1 scale_param_0,
\t.param .u32 scale_param_1,
\t.param .u64 .ptr .global .align 1 scale_param_2,
\t.param .u64 .ptr .global .align 1 scale_param_3,
\t.param .u64 .ptr .global .align 1 scale_param_4
)
.reqntid 128
{
\t.reg .b64 \t%rd<3>;
\tld.param.b64 \t%rd1, [scale_param_0];
\tld.param.b64 \t%rd2, [scale_param_2];
\tret;
}
"""


def test_an_entry_is_read() -> None:
    entry = ptx.read_entry(TEXT)
    names = tuple(f"scale_param_{index}" for index in range(5))
    assert entry == ptx.Entry("scale", names, (64, 32, 64, 64, 64), 128)


def test_unused_hidden_parameters_go_and_nothing_else() -> None:
    edited = ptx.expose(TEXT, BITS)
    assert ptx.read_entry(edited).parameters == ("scale_param_0", "scale_param_1", "scale_param_2")
    assert edited.split("{")[1] == TEXT.split("{")[1]
    lines = [line for line in TEXT.splitlines() if "param_3" not in line and "param_4" not in line]
    assert [line.rstrip(",") for line in edited.splitlines()] == [line.rstrip(",") for line in lines]


def test_an_entry_without_hidden_parameters_stays_as_it_is() -> None:
    edited = ptx.expose(TEXT, BITS)
    assert ptx.expose(edited, BITS) == edited


@pytest.mark.parametrize(
    "use",
    ["ld.param.b64 \t%rd3, [scale_param_4];", "mov.b64 \t%rd3, scale_param_3;", "ld.param.u32 %r1, [scale_param_3+4];"],
)
def test_a_hidden_parameter_in_use_is_refused_with_the_use(use: str) -> None:
    with pytest.raises(KernelError) as caught:
        ptx.expose(TEXT.replace("\tret;", f"\t{use}\n\tret;"), BITS)
    assert use in str(caught.value)


def test_a_longer_name_is_no_use() -> None:
    text = TEXT.replace("\tret;", "\tcall other, [scale_param_31];\n\tret;")
    assert len(ptx.read_entry(ptx.expose(text, BITS)).parameters) == 3


@pytest.mark.parametrize("bits", [(64, 64, 64), (64, 32, 64, 64, 64, 64), (32,)])
def test_sizes_are_checked(bits: tuple[int, ...]) -> None:
    with pytest.raises(KernelError, match=r"scale takes parameters of \(64, 32, 64, 64, 64\) bits; expected"):
        ptx.expose(TEXT, bits)


def test_a_hidden_number_is_refused() -> None:
    with pytest.raises(KernelError, match="hidden parameter scale_param_4 of 32 bits"):
        ptx.expose(TEXT.replace(".u64 .ptr .global .align 1 scale_param_4", ".u32 scale_param_4"), BITS)


@pytest.mark.parametrize("kind", [".align 64 .b8 scale_param_1[128]", ".f32 scale_param_1", ".b8 scale_param_1[4]"])
def test_parameters_that_tensorrt_cannot_pass_are_refused(kind: str) -> None:
    with pytest.raises(KernelError, match="neither a pointer nor a number: .param " + kind[:4].replace(".", r"\.")):
        ptx.read_entry(TEXT.replace(".u32 scale_param_1", kind))


def test_a_text_has_one_entry() -> None:
    with pytest.raises(KernelError, match="2 entries, scale, scale; expected 1"):
        ptx.read_entry(TEXT + TEXT)
    with pytest.raises(KernelError, match="0 entries"):
        ptx.read_entry(".version 8.7\n")


def test_clusters_are_refused() -> None:
    with pytest.raises(KernelError, match="launched in clusters"):
        ptx.read_entry(TEXT.replace(".reqntid 128", ".reqntid 128\n.reqnctapercluster 2"))


def test_an_entry_may_take_nothing() -> None:
    text = TEXT.replace("[scale_param_0]", "[0]").replace("[scale_param_2]", "[0]")
    with pytest.raises(KernelError, match="scale_param_1 of 32 bits"):
        ptx.expose(text, ())
    assert ptx.read_entry(ptx.expose(text.replace(".u32", ".u64"), ())).parameters == ()


@pytest.mark.parametrize(("before", "after"), [("sm_90a", "sm_90"), ("sm_100f", "sm_100"), ("sm_80", "sm_80")])
def test_a_target_loses_its_suffix(before: str, after: str) -> None:
    text = TEXT.replace("sm_90a", before)
    assert ptx.target(text) == before
    assert ptx.for_later_chips(text) == TEXT.replace("sm_90a", after)


def test_a_text_without_a_target_is_refused() -> None:
    with pytest.raises(KernelError, match="names no target"):
        ptx.target(TEXT.replace(".target", ".tarpit"))
