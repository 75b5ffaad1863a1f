#!/bin/bash
# A test's command that needs root: as_root.sh COMMAND... Without root it is skipped, and says so.
if ((EUID != 0)); then
  echo "skipped: all of it: needs root: network namespaces, raw sockets"
  exit 77
fi
exec "$@"
