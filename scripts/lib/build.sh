# Configuring and building a build directory. Needs common.sh and packages.sh.

# For builds that nobody changes file by file: twelve files of a part are compiled as one, in two
# thirds of the time.
many_as_one="-Dunity=on -Dunity_size=12"

# For builds that nobody debugs: half the time. Developers configure it otherwise
# (CONTRIBUTING.md), which stays.
to_use="-Ddebug=false $many_as_one"

# lacks_packages DIR: whether packages were installed since DIR was configured that decide
# what is built.
lacks_packages() {
  local package
  for package in "${installed_packages[@]}"; do
    grep -qsx "$package" "$1/packages.txt" || return 0
  done
  return 1
}

# is_of_another_tree DIR: whether it was configured elsewhere, and its tree was copied
# or moved here. It would build the sources at the former place.
is_of_another_tree() {
  local here
  here="\"source\": \"$(pwd -P)\", \"build\": \"$(pwd -P)/$1\""
  [[ -f $1/build.ninja ]] && ! grep -qsF "$here" "$1/meson-info/meson-info.json"
}

# ccache is used where it is installed. It takes precompiled headers only with these settings, and
# Meson does not add it to a compiler that is set explicitly.
through_ccache=""
if command -v ccache >/dev/null; then
  through_ccache="ccache "
  sloppiness=$(ccache --get-config sloppiness 2>/dev/null || true)
  if [[ $sloppiness != *pch_defines* ]]; then
    export CCACHE_SLOPPINESS=${sloppiness:+$sloppiness,}pch_defines,time_macros
  fi
  # A precompiled header names its tree: none may come from another one.
  export CCACHE_BASEDIR="" CCACHE_HASHDIR=true
fi

# build_tree DIR COMPILER "MESON OPTIONS" [TARGET...]: builds all targets when none is named. The
# log is DIR/build.log. In CI a warning is an error: elsewhere a compiler may have new ones. Where
# Debian has its libraries, Meson would know from dpkg-dev alone.
build_tree() {
  local dir=$1 compiler=$2 options=$3
  shift 3
  mkdir -p "$dir"
  : >"$dir/build.log"
  if is_of_another_tree "$dir"; then rm -rf "$dir"/{build.ninja,meson-*,.ninja_*,packages.txt}; fi
  if [[ ! -f $dir/build.ninja ]]; then
    # shellcheck disable=SC2086  # the options are several words
    CXX=$through_ccache$compiler \
      logged "$dir/build.log" "configuring $dir" meson setup "$dir" \
        --libdir "lib/$(gcc -dumpmachine)" ${CI:+-Dwerror=true} $options || return 1
  elif lacks_packages "$dir"; then
    logged "$dir/build.log" "configuring $dir with new packages" meson setup --reconfigure "$dir" ||
      return 1
  fi
  if lacks_packages "$dir"; then printf '%s\n' "${installed_packages[@]}" >>"$dir/packages.txt"; fi
  # Since Meson 1.7 what only tests need is no part of all.
  (($#)) || set -- all meson-test-prereq
  logged "$dir/build.log" "building $dir" ninja -C "$dir" "$@"
}
