"""docs/settings.md, from the fields of hypervisor/config.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_origin

from buildsupport.reference.markdown import MADE, code, table
from hypervisor import config

_HEAD = f"""# Settings of the daemon

{MADE}

Each setting of `hypervisor run` has one name. `http_port` is the key `http_port` of the TOML file that `--config` names, the environment variable `HYPERVISOR_HTTP_PORT`, and the option `--http-port`. Of these the option wins over the environment, the environment over the file, and the file over the default.

- In the file a setting that may be given several times is a list: `listen = ["unix:/run/hypervisor/hypervisor.sock"]`. In the environment its parts are separated by commas. On the command line the option is repeated.
- A flag is `true` or `false`; on the command line `--kubernetes` and `--no-kubernetes`.
- Where the default is empty, the description or the list below names what is used.
- SIGHUP reads file and environment again. Settings marked *yes* are taken at once; a changed setting without the mark is told in the log and waits for a restart. Settings that can't be used are refused as a whole, and those in force stay.
- An unknown name, or a value outside its bounds, ends the start with status 2 and one line that names the source and the setting.

The directories that are used where nothing is set:

| what | as root | as another user |
|---|---|---|
| sockets | `/run/hypervisor` | `$XDG_RUNTIME_DIR/hypervisor` |
| `state_dir` | `/var/lib/hypervisor` | `$XDG_STATE_HOME/hypervisor`, by default `~/.local/state/hypervisor` |
| `base_dir` | `/run/tensor-fusion/shm` | `shm` beside the sockets |

The aggregator's settings are its options: see [the command line](cli.md#hypervisor-aggregator).

## All settings
"""  # noqa: E501 - Markdown has one line a paragraph
_KINDS = {str: "text", int: "whole number", float: "number", bool: "flag"}


def document() -> str:
    """The whole page."""
    return "\n".join((_HEAD, *_table(), ""))


def _table() -> Iterator[str]:
    rows = ((code(name), _kind(name), _default(name), _reload(name), config.describe(name)[0]) for name in _names())
    return table(("setting", "kind", "default", "SIGHUP", "meaning"), rows)


def _names() -> tuple[str, ...]:
    return config.setting_names()


def _kind(name: str) -> str:
    kind: Any = config.kind(name)
    if get_origin(kind) is tuple:
        return "list of text"
    bounds = config.bounds(name)
    named = _KINDS[kind]
    return f"{named}, {bounds}" if bounds else named


def _default(name: str) -> str:
    default = config.default(name)
    if default in ("", ()):
        return ""
    return code(str(default).lower() if isinstance(default, bool) else str(default))


def _reload(name: str) -> str:
    return "yes" if config.describe(name)[1] else ""
