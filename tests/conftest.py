"""What all tests share: the tests' own folder on the import path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

pytest_plugins = ["pytester"]
