# Configuring and building a build directory. Needs common.sh.

# build_tree DIR COMPILER "MESON OPTIONS" [TARGET...]: builds all targets when none is named. The
# log is DIR/build.log.
build_tree() {
  local dir=$1 compiler=$2 options=$3
  shift 3
  mkdir -p "$dir"
  : >"$dir/build.log"
  if [[ ! -f $dir/build.ninja ]]; then
    # shellcheck disable=SC2086  # the options are several words
    CXX=$compiler logged "$dir/build.log" "configuring $dir" meson setup "$dir" $options || return 1
  fi
  logged "$dir/build.log" "building $dir" ninja -C "$dir" "$@"
}
