"""A checkout in which nothing was built, beside whatever is installed."""

import shutil
from pathlib import Path

import coop

# Of an editable install, which finds the extension of the checkout that it was made in.
FORGET_INSTALLED = (
    "import sys; sys.meta_path[:] = "
    "[each for each in sys.meta_path if '__editable__' not in each.__module__]; "
)


def copy_without_extension(checkout: Path) -> None:
    """The package alone."""
    package = Path(coop.__file__).parent
    shutil.copytree(
        package, checkout / "coop", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
