"""Begins the watch in every Python that a capture starts, after the sitecustomize that it would have had otherwise."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path


def _run_the_usual_one() -> None:
    """Runs the next sitecustomize on the path: some systems and environments have one of their own."""
    here = Path(__file__).resolve().parent
    elsewhere = [entry for entry in sys.path if Path(entry or ".").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _begin_watch(package: str) -> None:
    folder = Path(package)
    spec = importlib.util.spec_from_file_location(
        "_cotenant_in_script", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    importlib.import_module(spec.name + ".torch_watch").begin_watch()


_run_the_usual_one()
if "COTENANT_CAPTURE_FOLDER" in os.environ:
    _begin_watch(os.environ["COTENANT_CAPTURE_PACKAGE"])
