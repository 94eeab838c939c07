#!/usr/bin/env python3
"""``reverie train`` as a script: ``python scripts/train.py +experiment=NAME``."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Trains with this Python and the checkout's source; a Python without the packages hands over to the launcher."""
    if any(find_spec(package) is None for package in ("torch", "hydra", "gymnasium", "rich", "safetensors")):
        os.execv(ROOT / "reverie", [str(ROOT / "reverie"), "train", *sys.argv[1:]])
    sys.path.insert(0, str(ROOT / "src"))
    from reverie.cli import main as reverie

    return reverie(["train", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
