# Debian packages: lists of those needed, checks, and installation. Needs common.sh.

build_packages=(
  g++ meson ninja-build pkg-config python3 libdpdk-dev libboost-program-options-dev libspdlog-dev
  libhwy-dev libipsec-mb-dev libisal-dev libsodium-dev nlohmann-json3-dev
  libpcap-dev prometheus-cpp-dev catch2 iproute2
  python3-numpy  # for README.md's first program in Python
)
torch_packages=(
  python3-torch libtorch-dev pybind11-dev python3-dev
  libopenblas0-serial  # with it PyTorch multiplies matrices about eight times as fast
)
test_packages=(  # including the bindings' tests
  chromium clang clang-format groff-base iproute2 procps prometheus python3-yaml shellcheck tmux
  tshark zsh
  "${torch_packages[@]}" python3-scipy libopenmpi-dev openmpi-bin gfortran
  xz-utils  # the sources of PyTorch's tests are packed with it
)
package_packages=(  # for our own Debian packages, and for their checks
  build-essential debhelper dh-python git lintian mmdebstrap libopenmpi-dev "${torch_packages[@]}"
)
# For what pip installs, and to install it.
wheel_packages=(binutils patchelf python3-setuptools python3-venv python3-wheel)
mpi_program_packages=(lammps hpcc scalapack-mpi-test)
guest_packages=(busybox-static iproute2 qemu-system-x86)  # for tests on emulated NICs
bench_packages=(  # peers in bench/, and what it draws charts with
  dpdk-dev libbenchmark-dev openmpi-bin libopenmpi-dev mpich libmpich-dev python3-matplotlib
  "${torch_packages[@]}"
)

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update && apt-get install -y --no-install-recommends "$@"
}

installed_packages=()

# install_packages PACKAGE...: installs those that are missing, if there are any.
install_packages() {
  installed_packages=("$@")
  command -v dpkg-query >/dev/null ||
    die "these scripts install packages of Debian 12 and 13; elsewhere, their equivalents serve" \
      "($*)"
  local package missing=()
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  ((EUID == 0)) || die "packages are missing; let root run: apt-get install ${missing[*]}"
  logged build/install.log "installing ${#missing[@]} packages" apt_install "${missing[@]}"
}
