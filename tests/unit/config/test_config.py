"""Settings come from defaults < file < environment < flags, and a wrong one is named with its source."""

from pathlib import Path

import pytest

from hypervisor import config


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_order_of_sources(tmp_path: Path) -> None:
    file = write(tmp_path / "hypervisor.toml", 'http_port = 1\nnode_name = "file"\nreport_to = "file:1"\n')
    environment = {"HYPERVISOR_NODE_NAME": "environment", "HYPERVISOR_REPORT_TO": "environment:1"}
    settings = config.load(file=file, environment=environment, flags={"report_to": "flag:1"})
    assert (settings.http_port, settings.node_name, settings.report_to) == (1, "environment", "flag:1")
    assert settings.tflops_ratio == 1.0


def test_environment_is_converted() -> None:
    settings = config.load(
        file=None,
        environment={
            "HYPERVISOR_LISTEN": "unix:/a, 127.0.0.1:1",
            "HYPERVISOR_HTTP_PORT": "0",
            "HYPERVISOR_INSECURE": "true",
        },
        flags={},
    )
    assert settings.listen == ("unix:/a", "127.0.0.1:1")
    assert settings.http_port == 0
    assert settings.insecure is True


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http_prot = 1", r"unknown setting 'http_prot' \(did you mean 'http_port'"),
        ("b_nothing = 1\na_nothing = 2", "unknown setting 'a_nothing'; an unknown setting 'b_nothing'; "),
        ('http_port = "8001"', "http_port"),
        ("http_port = 70000", "http_port"),
        ("http_port = ", "is not TOML"),
        ('log_level = "loud"', "log_level"),
    ],
)
def test_a_wrong_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path / "hypervisor.toml", text)
    with pytest.raises(config.SettingsError, match=words) as caught:
        config.load(file=file, environment={}, flags={})
    assert str(file) in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(config.SettingsError, match="No such file"):
        config.load(file=tmp_path / "none.toml", environment={}, flags={})


def test_reload_takes_only_what_may_change() -> None:
    old = config.Settings()
    new = config.Settings(vram_ratio=2.0, http_port=9)
    taken, pending = config.reloaded(old, new)
    assert taken.vram_ratio == 2.0
    assert taken.http_port == old.http_port
    assert pending == ("http_port",)


@pytest.mark.parametrize("name", config.setting_names())
def test_every_setting_is_described(name: str) -> None:
    text, reload = config.describe(name)
    assert text
    assert isinstance(reload, bool)
    config.kind(name)
    config.default(name)


def test_labels_of_a_node_are_names_and_values() -> None:
    flags = {"node_label": ("zone=b", "zone=a", "example.com/gpu=", "size=big")}
    found = config.load(file=None, environment={}, flags=flags)
    assert found.node_labels == (("example.com/gpu", ""), ("size", "big"), ("zone", "a"))
    from_environment = config.load(file=None, environment={"HYPERVISOR_NODE_LABEL": "zone=a, size=big"}, flags={})
    assert from_environment.node_labels == (("size", "big"), ("zone", "a"))


@pytest.mark.parametrize("label", ["zone", "=a", "zone=a b", "-zone=a", "a/b/c=d", "zone=" + "x" * 64])
def test_what_is_no_label_is_refused(label: str) -> None:
    with pytest.raises(config.SettingsError, match="node_label"):
        config.load(file=None, environment={}, flags={"node_label": (label,)})
