"""Finishes the layer of our own code in an image: version, commands, byte code. Run by path inside the image build.

`code.py PYPROJECT` expects the packages below /opt/epd and an environment at /opt/venv that looks there. A command of
the project whose package is not in this image is left out.
"""

# ruff: noqa: INP001, S603, T201  (run by path, not imported as a package; what it prints ends in the build log)
from __future__ import annotations

import compileall
import os
import py_compile
import subprocess
import sys
import tomllib
from pathlib import Path

COMMAND = """#!{python}
import sys

from {module} import {function}

if __name__ == "__main__":
    sys.exit({function}())
"""


def install(pyproject: Path, code: Path, environment: Path) -> list[str]:
    """Write the distribution's metadata beside the code and its commands into the environment.

    Returns:
        The names of the commands that this image has.

    Raises:
        SystemExit: A module does not compile, or a command's module cannot be imported here; pods would not start.
    """
    project = tomllib.loads(pyproject.read_text())["project"]
    metadata = code / f"{project['name']}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    commands = []
    for name, target in project["scripts"].items():
        module, function = target.split(":")
        if not code.joinpath(*module.split(".")[:-1]).is_dir():
            continue
        command = environment / "bin" / name
        command.write_text(COMMAND.format(python=environment / "bin" / "python", module=module, function=function))
        command.chmod(0o755)
        commands.append((name, module))
    # The root file system is read-only in our pods: byte code must be there, and must not depend on file times.
    if not compileall.compile_dir(code, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH):
        raise SystemExit(f"{code}: a module does not compile")
    for name, module in commands:
        argv = [str(environment / "bin" / "python"), "-c", f"import {module}"]
        if subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(code)}, check=False).returncode:
            raise SystemExit(f"{name}: {module} cannot be imported in this image")
    return [name for name, _ in commands]


def main() -> None:
    """Finish the image that this runs in."""
    print("commands:", *install(Path(sys.argv[1]), Path("/opt/epd"), Path("/opt/venv")))


if __name__ == "__main__":
    main()
