"""Where settings come from, in which order, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.cli.main import main, parser
from trtspec.cli.serve_settings import GROUPS, serve_options_of, settings_of, speculative_of
from trtspec.config import EngineOptions
from trtspec.declared import settings
from trtspec.errors import ConfigError
from trtspec.service.options import AdmissionOptions, SecurityOptions, ServeOptions, TimeOptions
from trtspec.settings import Settings


def collected(*arguments: str, file: Path | None = None, **environment: str) -> Settings:
    given = ["--config", str(file)] if file else []
    return settings_of(parser().parse_args(["serve", "x", *given, *arguments]), environment)


def options_of(*arguments: str, file: Path | None = None, **environment: str) -> ServeOptions:
    return serve_options_of(collected(*arguments, file=file, **environment))


def written(directory: Path, text: str) -> Path:
    file = directory / "serve.toml"
    file.write_text(text)
    return file


def test_a_flag_goes_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(
        tmp_path, "[server]\nport = 1\nfrontends = 2\n[time]\ndrain_seconds = 3\n[security]\ntokens = '~/t'\n"
    )
    options = options_of("--port", "3", file=file, TRTSPEC_SERVE_PORT="2", TRTSPEC_SERVE_FRONTENDS="4", OTHER="5")
    assert (options.port, options.frontends, options.time) == (3, 4, TimeOptions(drain_seconds=3.0))
    assert options.security == SecurityOptions(tokens=Path.home() / "t")
    assert options.admission == AdmissionOptions()
    assert options_of(TRTSPEC_SERVE_CONFIG=str(file)).port == 1


@pytest.mark.parametrize(("text", "value"), [("on", True), ("False", False), ("1", True), ("NO", False)])
def test_the_environment_has_words_for_yes_and_no(text: str, value: bool) -> None:
    assert collected(TRTSPEC_SERVE_VERIFY=text).build(EngineOptions).verify is value


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TRTSPEC_SERVE_PRT": "1"}, "TRTSPEC_SERVE_PRT is no setting; is it port?"),
        ({"TRTSPEC_SERVE_ZZZZZZ": "1"}, "TRTSPEC_SERVE_ZZZZZZ is no setting; `trtspec serve --print-config` shows"),
        (
            {"TRTSPEC_SERVE_PORT": "tcp://10.0.0.1:1"},
            "TRTSPEC_SERVE_PORT is 'tcp://10.0.0.1:1'; allowed is a whole number",
        ),
        ({"TRTSPEC_SERVE_PORT": "70000"}, "TRTSPEC_SERVE_PORT is 70000; allowed is 0 to 65535"),
        ({"TRTSPEC_SERVE_VERIFY": "maybe"}, "TRTSPEC_SERVE_VERIFY is 'maybe'; allowed is true or false"),
        ({"TRTSPEC_SERVE_DRAIN_SECONDS": "nan"}, "TRTSPEC_SERVE_DRAIN_SECONDS is nan; allowed is 0 or more"),
    ],
)
def test_a_wrong_variable_is_told_by_its_name(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        collected(**environment)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nprot = 1", r"prot of \[server\] in .*serve\.toml is no setting; is it port\?"),
        ("[time]\nport = 1", r"port of \[time\] in .*serve\.toml is no setting"),
        ("[serve]\nport = 1", r"serve\.toml has 'serve'; known tables are server, admission, "),
        ("port = 1", r"serve\.toml has 'port'; known tables are "),
        ("[server]\nport = '1'", r"port of \[server\] in .* is '1'; allowed is a whole number"),
        ("[server]\nport = true", r"port of \[server\] in .* is True; allowed is a whole number"),
        ("[server]\nport = 70000", r"port of \[server\] in .* is 70000; allowed is 0 to 65535"),
        ("[server]\nhost = 1", r"host of \[server\] in .* is 1; allowed is a text"),
        ("[security]\ntokens = 1", r"tokens of \[security\] in .* is 1; allowed is a path"),
        ("[server", r"--config .*serve\.toml is no TOML: "),
    ],
)
def test_a_wrong_file_is_told_by_its_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        collected(file=written(tmp_path, text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="none.toml cannot be read: No such file"):
        collected(file=tmp_path / "none.toml")


def test_what_is_printed_can_be_given_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = '{"method": "ngram"}'
    flags = ["--port", "7", "--speculative-config", config, "--tokens", 'a"b', "--queue-seconds", "1.5", "--verify"]
    assert main(["serve", "--print-config", *flags]) == 0
    printed = capsys.readouterr().out
    assert "port = 7  # --port\n" in printed and 'host = "127.0.0.1"  # default\n' in printed
    assert "# threads is not set (default: 0 for embedded engines)\n" in printed
    again, first = collected(file=written(tmp_path, printed)), collected(*flags)
    assert serve_options_of(again) == serve_options_of(first)
    assert again.build(EngineOptions) == first.build(EngineOptions)
    assert speculative_of(again) == speculative_of(first) == {"method": "ngram"}


def test_a_setting_has_one_name_in_all_groups() -> None:
    names = [item.name for kind in GROUPS.values() for item in settings(kind)]
    assert len(names) == len(set(names)) and "config" not in names


def test_without_a_source_the_way_out_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "name an engine folder, a model folder or a .gguf file" in capsys.readouterr().err


def test_settings_are_collected_without_the_server() -> None:
    code = "import sys, trtspec.cli.serve_settings; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
