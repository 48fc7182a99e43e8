#!/usr/bin/env python3
"""Reads what goes over an interface, as a stranger on the network would: overhear.py INTERFACE MARK READY OVER

Makes the file READY when it reads, ends when the file OVER is there, and prints how many packets had bytes, and in how
many of them MARK was."""
import os
import socket
import sys

interface, mark, ready, over = sys.argv[1], sys.argv[2].encode(), sys.argv[3], sys.argv[4]
ETH_P_ALL = 3
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
packets.bind((interface, 0))
open(ready, "w").close()
n = marked = 0
while True:
    is_over = os.path.exists(over)
    packets.settimeout(0 if is_over else 0.2)  # at the end, what is queued
    try:
        packet = packets.recv(1 << 17)
    except (socket.timeout, BlockingIOError):
        if is_over:
            break
        continue
    n += len(packet) > 100
    marked += mark in packet
print(f"packets={n} marked={marked}")
