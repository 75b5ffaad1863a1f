"""Writes the status page into a C++ source: embed.py PAGE SOURCE."""
import pathlib
import sys

page, source = map(pathlib.Path, sys.argv[1:])
text = page.read_text(encoding="utf-8")
DELIMITER = "sluice"
assert f'){DELIMITER}"' not in text
source.write_text(f"""// Made by embed.py from {page.name}.
#include "aggregator/monitoring/status_page.hpp"

namespace sluice::aggregator {{

const char kStatusPage[] = R"{DELIMITER}({text}){DELIMITER}";

}}  // namespace sluice::aggregator
""", encoding="utf-8")
