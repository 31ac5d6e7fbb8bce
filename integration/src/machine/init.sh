#!/bin/sh
# The first process of the machine. It loads the modules, and then runs one script after another that the host sends: a line with the
# length of the script in bytes, then the script. The answer is a line with its exit status. Standard output and standard error have ports of
# their own; what a script writes has left the machine when its status is sent.
export PATH=/bin HOME=/root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mkdir -p /dev/pts /dev/shm
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
exec </dev/null >/dev/console 2>&1
while read -r module; do
    insmod "/modules/$module" || echo "init: cannot load $module"
done </modules/order
if grep -q tenon.share /proc/cmdline; then
    mkdir -p /share
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000 share /share || echo "init: cannot mount the share"
fi
ulimit -l unlimited
ip link set lo up

# The ports carry numbers, in the order in which qemu was told of them.
exec 3<>/dev/vport0p1 4>/dev/vport0p2 5>/dev/vport0p3
echo ready >&3
while read -r length <&3; do
    head -c "$length" <&3 >/tmp/job
    sh /tmp/job </dev/null >&4 2>&5 3>&- 4>&- 5>&-
    echo "$?" >&3
done
