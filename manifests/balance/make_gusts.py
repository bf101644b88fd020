"""Writes the gusts of balance.py; the spec runs it once as its setup."""

import json
import math
from pathlib import Path

Path("gusts.json").write_text(json.dumps([round(0.3 * math.sin(step / 3.0), 4) for step in range(60)]))
print("wrote gusts.json")
