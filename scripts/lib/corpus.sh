# The inputs of the fuzz targets, kept as one archive a target. Sourced by bash.

# unpack_corpus ARCHIVE DIRECTORY: then the directory has the files of the archive and no others.
unpack_corpus() {
  rm -rf "$2"
  mkdir -p "$2"
  tar -xzf "$1" -C "$2"
}

# pack_corpus DIRECTORY ARCHIVE: the same files make the same archive.
pack_corpus() {
  tar --sort=name --format=ustar --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=rX,u+w \
    -C "$1" -c . | gzip -9n >"$2"
}
