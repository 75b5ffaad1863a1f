# Configuring and building a build directory. Needs common.sh and packages.sh.

# lacks_packages DIR: whether packages are here that were not when DIR was configured, which decide
# what is built.
lacks_packages() {
  local package
  for package in "${installed_packages[@]}"; do
    grep -qsx "$package" "$1/packages.txt" || return 0
  done
  return 1
}

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
  elif lacks_packages "$dir"; then
    logged "$dir/build.log" "configuring $dir with new packages" meson setup --reconfigure "$dir" ||
      return 1
  fi
  if lacks_packages "$dir"; then printf '%s\n' "${installed_packages[@]}" >>"$dir/packages.txt"; fi
  logged "$dir/build.log" "building $dir" ninja -C "$dir" "$@"
}
