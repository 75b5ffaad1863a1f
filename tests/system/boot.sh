#!/bin/bash
# boot.sh ROOT CGROUP: boots the systemd of a root directory, as process 1 of namespaces of its own,
# without a network. Ends when that ends; nothing of it stays but the control group's directories.
set -euo pipefail
root=$1 group=$2

if [[ -f /sys/fs/cgroup/cgroup.controllers ]]; then
  hierarchies=("")
else
  hierarchies=(systemd unified) # systemd takes its own of version 1, and the bare one of version 2
fi
for hierarchy in "${hierarchies[@]}"; do
  mkdir "/sys/fs/cgroup/$hierarchy/$group"
  echo $$ >"/sys/fs/cgroup/$hierarchy/$group/cgroup.procs"
done

boot='
mount --make-rprivate /
mount --bind "$0" "$0"
cd "$0"
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys  # they are the real kernel'\''s
mount -t sysfs -o ro sysfs sys
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm
mount -t tmpfs tmpfs dev/shm
ln -s /proc/self/fd dev/fd
for name in null zero full random urandom tty; do
  touch dev/$name
  mount --bind /dev/$name dev/$name
done
mount -t tmpfs tmpfs sys/fs/cgroup
for hierarchy in "$@"; do
  [[ -z $hierarchy ]] || mkdir sys/fs/cgroup/$hierarchy
  if [[ $hierarchy == systemd ]]; then
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  else
    mount -t cgroup2 cgroup2 sys/fs/cgroup/$hierarchy
  fi
done
exec chroot . env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd'
exec unshare --mount --pid --cgroup --uts --ipc --net --fork --kill-child \
  bash -euo pipefail -c "$boot" "$root" "${hierarchies[@]}"
