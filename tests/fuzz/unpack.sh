#!/bin/bash
# Unpacks a corpus beside the list of its files: ARCHIVE LIST.
set -euo pipefail
source "$(dirname "$0")/../../scripts/lib/corpus.sh"
unpack_corpus "$1" "${2%.list}"
tar -tzf "$1" >"$2"
