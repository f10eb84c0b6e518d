"""One end of a slow link between two network namespaces: python3 delay.py DEVICE MILLISECONDS MBIT_S

What comes out of the tunnel device is written to the standard output after the delay and no faster than the rate; what comes
in at the standard input goes into the device. Two of these, each reading what the other writes, are the link.
"""

import fcntl
import os
import queue
import struct
import sys
import threading
import time

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


def exactly(source, count):
    data = b""
    while len(data) < count:
        more = source.read(count - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def main():
    device, delay, rate = sys.argv[1], float(sys.argv[2]) / 1e3, float(sys.argv[3]) * 1e6 / 8
    tunnel = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tunnel, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI))
    waiting = queue.Queue(2000)
    out, inn = os.fdopen(1, "wb", buffering=0), os.fdopen(0, "rb", buffering=1 << 16)

    def take():
        while True:
            packet = os.read(tunnel, 65536)
            try:
                waiting.put_nowait((time.monotonic() + delay, packet))
            except queue.Full:
                pass  # A full link drops packets.

    def give():
        free = 0.0
        while True:
            due, packet = waiting.get()
            free = max(free, due) + len(packet) / rate
            pause = free - time.monotonic()
            if pause > 0:
                time.sleep(pause)
            out.write(struct.pack("!I", len(packet)) + packet)

    for work in (take, give):
        threading.Thread(target=work, daemon=True).start()
    while True:
        (length,) = struct.unpack("!I", exactly(inn, 4))
        packet = exactly(inn, length)
        try:
            os.write(tunnel, packet)
        except OSError:
            pass  # The device is not up yet; a link that is down drops packets.


main()
