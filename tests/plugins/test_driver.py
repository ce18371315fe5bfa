"""The driver layer over a library that records, and the PTX's launches over one that does as it should, or does not."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from plugins.aot import CompiledKernel, compile_kernel
from plugins.contract import KernelSpec
from plugins.launch import launch
from plugins.sampling_specs import CHOOSE_TOKEN_PARTS
from plugins.specs import KERNELS
from scripts.gpu_check.kernels import ahead
from scripts.gpu_check.kernels.chains import Shape
from scripts.gpu_check.kernels.driver import Driver, DriverError
from scripts.gpu_check.kernels.launches import Launch, every_kernel
from scripts.gpu_check.kernels.rows import random_logits, rows
from tests.fakes.libcuda import RecordingDriver, recording_driver
from tests.plugins.doubles import Doing, Fault, without_compiler
from trtspec.errors import KernelError, MissingDependency

CPU = torch.device("cpu")
INVALID_PTX, OUT_OF_MEMORY = 218, 2


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> RecordingDriver:
    return recording_driver(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture
def driver(library: RecordingDriver) -> Driver:
    library.reset()
    return Driver(library.path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledKernel:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        return compile_kernel(CHOOSE_TOKEN_PARTS, "bfloat16", 90)


def one_launch() -> Launch:
    """Two rows of three splits."""
    inputs = rows(random_logits(2, 9000, dtype=torch.bfloat16))
    numbers = {"vocabulary": 8999, "lane": 1}
    return Launch(CHOOSE_TOKEN_PARTS, inputs, numbers, launch(CHOOSE_TOKEN_PARTS, *inputs, **numbers))


def test_a_launch_has_tensorrts_arguments_in_its_order(
    driver: Driver, library: RecordingDriver, compiled: CompiledKernel
) -> None:
    """Pointers of the inputs, then width, vocabulary and lane, then pointers of the outputs."""
    launched = one_launch()
    function = driver.load(compiled.entry, compiled.ptx)
    assert function.parameter_bytes == (8,) * 6 + (4,) * 3 + (8,) * 6
    assert (function.registers, function.spilled_bytes) == (40, 16)
    driver.launch(function, (2, 3), 128, 4096, 77, ahead.arguments_of(launched, launched.outputs))
    inputs, outputs = ([f"p{item.data_ptr()}" for item in arrays] for arrays in (launched.inputs, launched.outputs))
    told = " ".join([*inputs, "i9000", "i8999", "i1", *outputs])
    assert library.record == [
        "function choose_token_parts",
        f"launch 1 grid 2 3 1 block 128 1 1 shared 4096 stream 77 extra 0 {told}",
    ]


def test_arguments_of_other_sizes_are_not_launched(
    driver: Driver, library: RecordingDriver, compiled: CompiledKernel
) -> None:
    function = driver.load(compiled.entry, compiled.ptx)
    launched = one_launch()
    arguments = ahead.arguments_of(launched, launched.outputs)
    wrong = [arguments[:-1], [*arguments, ctypes.c_void_p()], [*arguments[6:], *arguments[:6]]]
    for given in wrong:
        with pytest.raises(DriverError, match=r"choose_token_parts takes parameters of \(8, 8, .* bytes; given are"):
            driver.launch(function, (2, 3), 128, 4096, 0, given)
    assert len(library.record) == 1


def test_ptx_that_is_refused_is_refused_with_the_assemblers_words(
    driver: Driver, library: RecordingDriver, compiled: CompiledKernel
) -> None:
    library.reset(module_code=INVALID_PTX)
    wanted = r"cuModuleLoadDataEx answers CUDA_ERROR_INVALID_PTX \(218\) to the PTX of x: ptxas: no such instruction"
    with pytest.raises(DriverError, match=wanted):
        driver.load("x", compiled.ptx)
    assert library.record == ["log 8192"]


def test_a_launch_that_is_refused_says_what_was_asked(
    driver: Driver, library: RecordingDriver, compiled: CompiledKernel
) -> None:
    function, launched = driver.load(compiled.entry, compiled.ptx), one_launch()
    library.reset(launch_code=OUT_OF_MEMORY)
    with pytest.raises(DriverError, match=r"cuLaunchKernel answers error 2 for .* grid of \[2, 3, 1\] blocks of 128"):
        driver.launch(function, (2, 3), 128, 4096, 0, ahead.arguments_of(launched, launched.outputs))


def test_without_a_context_nothing_is_without_compiler(driver: Driver, library: RecordingDriver) -> None:
    library.reset(context=False)
    with pytest.raises(DriverError, match="no CUDA context is current; make a tensor"):
        driver.load("x", "")


def test_a_driver_that_is_missing_or_too_old_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="CUDA driver cannot be opened .*nowhere"):
        Driver(str(tmp_path / "nowhere.so"))
    old = recording_driver(tmp_path, without="cuFuncGetParamInfo")
    with pytest.raises(MissingDependency, match="has no cuFuncGetParamInfo, which came with CUDA 12.4"):
        Driver(old.path)


def change_a_bit(launched: Launch, pointers: Sequence[int]) -> None:
    """The last of the first output's."""
    ctypes.c_uint8.from_address(pointers[0] + launched.outputs[0].nbytes - 4).value ^= 1


def write_beyond(launched: Launch, pointers: Sequence[int]) -> None:
    ctypes.memset(pointers[-1] + launched.outputs[-1].nbytes, 0, 1)


def write_an_input(launched: Launch, pointers: Sequence[int]) -> None:
    ctypes.c_uint8.from_address(launched.inputs[0].data_ptr()).value ^= 1


@lru_cache
def every_launch() -> list[Launch]:
    """One of each kernel."""
    shape = Shape(2, 2, 40, padding=8)
    return [item for kind in every_kernel(shape, torch.bfloat16, CPU, seed=1) for item in kind.launches()]


def test_every_kernel_is_compared() -> None:
    launches = every_launch()
    checks, seen = ahead.check(without_compiler(launches, ahead.AS_THE_LAUNCHER), Doing(launches))  # type: ignore[arg-type]
    assert {item.spec.name for item in launches} == set(KERNELS)
    assert [item.detail for item in checks if not item.passed] == []
    assert len(checks) == len(KERNELS) + 1 and len(seen) == len(KERNELS)
    some, _ = ahead.check(without_compiler(launches[:2], ahead.AS_THE_LAUNCHER), Doing(launches))  # type: ignore[arg-type]
    assert not some[-1].passed and "walk_tree" in some[-1].detail


def test_a_kernel_that_does_not_compile_fails_alone_and_the_same_is_compiled_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str, tuple[str, ...]]] = []

    def compile_only(spec: KernelSpec, logits: str, architecture: int, multiples: Sequence[str]) -> CompiledKernel:
        asked.append((spec.name, logits, tuple(multiples)))
        if spec.name == "walk_tree":
            raise KernelError("the compiler's words")
        return without_compiler([item for item in launches if item.spec is spec][:1], ahead.AS_THE_PLUGIN)[0].compiled  # type: ignore[return-value]

    monkeypatch.setattr(ahead, "compile_kernel", compile_only)
    launches = every_launch() * 2
    checks, seen = ahead.check(ahead.compile_all(launches, 90), Doing(launches))  # type: ignore[arg-type]
    assert len(asked) == len(set(asked)) < len(launches) * len(ahead.VARIANTS)
    failed = {check.name: check.detail for check in checks if not check.passed}
    assert failed == {
        "PTX of walk_tree with TensorRT's arguments": ("float32, aligned as PyTorch's arrays: the compiler's words"),
        "every kernel was launched": "not walk_tree",
    }
    assert len(seen) == len(ahead.VARIANTS) * (len(launches) - 2)


def test_what_is_loaded_and_not_launched_is_missing(
    driver: Driver, library: RecordingDriver, compiled: CompiledKernel
) -> None:
    library.reset(launch_code=OUT_OF_MEMORY)
    checks, seen = ahead.check([ahead.Loaded(one_launch(), ahead.AS_THE_LAUNCHER, compiled)], driver)
    assert len(seen) == 1 and not checks[-1].passed and "choose_token_parts" in checks[-1].detail


@pytest.mark.parametrize("variant", ahead.VARIANTS, ids=["launcher's", "plugin's"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (change_a_bit, "part_keys differs in 1 of 6 places"),
        (write_beyond, "part_sums is written beyond its end"),
        (write_an_input, "input logits differs in 1 of 18000 places"),
    ],
)
def test_what_a_launch_does_wrong_is_found(fault: Fault, words: str, variant: ahead.Variant) -> None:
    launched = one_launch()
    check = ahead.check(without_compiler([launched], variant), Doing([launched], fault))[0][0]  # type: ignore[arg-type]
    assert not check.passed and words in check.detail


@pytest.mark.parametrize(("share", "near"), [(1e-6, True), (1e-4, False)])
def test_sums_are_exact_as_the_launchers_and_near_as_the_plugins(share: float, near: bool) -> None:
    launched = one_launch()

    def nudge(known: Launch, pointers: Sequence[int]) -> None:
        ctypes.c_float.from_address(pointers[-1]).value *= 1 + share

    def passed(variant: ahead.Variant) -> bool:
        return ahead.check(without_compiler([launched], variant), Doing([launched], nudge))[0][0].passed  # type: ignore[arg-type]

    assert (passed(ahead.AS_THE_LAUNCHER), passed(ahead.AS_THE_PLUGIN)) == (False, near)


def test_a_launch_over_a_driver_that_does_nothing_fails(driver: Driver, compiled: CompiledKernel) -> None:
    """Outputs are full of rubbish before it, so what was there does not pass for a result."""
    item = ahead.Loaded(one_launch(), ahead.AS_THE_LAUNCHER, compiled)
    check = ahead.check([item], driver)[0][0]
    assert not check.passed and "part_keys differs in 6 of 6 places" in check.detail


def test_what_each_variant_relies_on() -> None:
    shape = Shape(1, 2, 64, padding=16)
    choose = next(every_kernel(shape, torch.float16, CPU, seed=1)[0].launches())
    arrays = [name for name in choose.spec.arguments if name not in ("width", "vocabulary", "lane")]
    assert set(ahead.launchers_multiples(choose)) == {*arrays, "width", "vocabulary", "lane"}
    assert ahead.plugins_multiples(choose) == ("logits", "width", "vocabulary", "lane")
    odd = one_launch()
    assert ahead.launchers_multiples(odd) == tuple(arrays)
    assert ahead.plugins_multiples(odd) == ()
    assert (ahead.logits_of(choose), ahead.logits_of(odd)) == ("float16", "bfloat16")
