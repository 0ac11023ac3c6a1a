"""Loads the native extension, or says in one sentence why it cannot and what to do.

`from coop._native import _C` is how the rest of the package gets it: `coop._C`, or `coop._C_debug`
(all invariant checks) where the environment says `COOP_DEBUG=1`.
"""

import importlib
import os
import platform
from typing import TYPE_CHECKING, Any

import torch

__all__ = ["_C"]


def _load() -> Any:
    debug = os.environ.get("COOP_DEBUG") == "1"
    module = "coop._C_debug" if debug else "coop._C"
    install = f"{'COOP_DEBUG=1 ' if debug else ''}pip install --no-build-isolation -e ."
    fix = f"run `{install}` in the checkout"
    try:
        extension = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ImportError(
            f"coop's native extension {module} is not built for this Python "
            f"({platform.python_version()}): {fix}.",
            name=module,
        ) from None
    except ImportError as error:
        # Built for another torch, whose symbols this one does not have: the loader refuses it.
        raise ImportError(
            f"coop's native extension {module} does not load with the installed torch "
            f"{torch.__version__} ({error}): {fix}.",
            name=module,
        ) from None
    if extension.torch_version != torch.__version__:
        raise ImportError(
            f"coop's native extension {module} was built for torch {extension.torch_version}, "
            f"but torch {torch.__version__} is installed: {fix}.",
            name=module,
        )
    return extension


if TYPE_CHECKING:
    from coop import _C
else:
    _C = _load()
