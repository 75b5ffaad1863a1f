"""Prints the vectors of protection.cpp and packet_cipher.cpp: CRC32C bit by bit, BLAKE2b from
hashlib, AES-GCM from OpenSSL."""
import hashlib
import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
TEXT = b"correct horse battery staple"
KEY = bytes(range(32))


def shifted(register, data):
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (POLYNOMIAL if register & 1 else 0)
    return register


def crc32c(data):
    return shifted(0xFFFFFFFF, data) ^ 0xFFFFFFFF


def four_bytes_for_zero(before):
    """What makes the CRC32C zero when it follows `before`."""
    register = 0xFFFFFFFF
    for _ in range(32):  # one step of shifted() backwards
        top = register >> 31
        register = (register ^ (POLYNOMIAL if top else 0)) << 1 | top
    return struct.pack("<I", register ^ shifted(0xFFFFFFFF, before))


def keyed(size, key, message):
    return hashlib.blake2b(message, digest_size=size, key=key).digest()


def sealed(key, counter, clear, text):
    nonce = bytes(4) + struct.pack("<Q", counter)
    out = AESGCM(key).encrypt(nonce, text, clear)
    return clear + out[:-16] + struct.pack("<Q", counter) + out[-16:]


def header(kind, length, flags, integrity):
    return struct.pack("<HBBHHII", 0x4C53, 1, kind, length, flags, 0x0A0B0C0D, integrity)


def context(name):
    return name.encode().ljust(16, b"\0")


def show(name, data):
    print(f"{name}: {data.hex(' ')}")


def main():
    ack = struct.pack("<QHHIQ", 0x1122334455667788, 3, 5, 0, 10)
    show("ACK with CRC", header(6, 40, 0, crc32c(header(6, 40, 0, 0) + ack)) + ack)
    show("ACK sealed", sealed(KEY, 7, header(6, 64, 1, 0) + ack, b""))
    later = keyed(32, KEY, context("sluice renewal1") + struct.pack("<I", 5))
    show("ACK sealed later", sealed(later, 5 << 32, header(6, 64, 1, 0) + ack, b""))
    show("clear, text, counter, tag", sealed(KEY, 7, bytes(range(40)), bytes(range(100, 170))))
    left = header(0x86, 40, 1, 0) + struct.pack("<Q", 0x1122334455667788)
    tag = keyed(16, KEY, left)
    show("LEFT with tag", left + tag)
    show("LEFT with both", header(0x86, 40, 1, crc32c(left + tag)) + left[16:] + tag)

    hello = header(1, 128, 0, 0) + struct.pack("<QHH", 0x1112131415161718, 3, 8) + bytes(96)
    zero = four_bytes_for_zero(hello)
    assert crc32c(hello + zero) == 0
    show("last four bytes of a HELLO with CRC 0", zero)

    master = hashlib.blake2b(context("sluice secret 1") + TEXT, digest_size=32).digest()
    job = struct.pack("<I", 7)
    show("handshake key", keyed(32, master, context("sluice joining1") + job))
    session = struct.pack("<IQQQHHHHHHBB", 7, 0x3132333435363738, 0x0102030405060708,
                          0xA1A2A3A4A5A6A7A8, 1, 2, 8, 16, 256, 1472, 4, 1)
    show("downstream key", keyed(32, master, context("sluice to rank1") + session))
    binding = struct.pack("<QQH", 0x1112131415161718, 0x1122334455667788, 3)
    show("upstream key", keyed(32, master, context("sluice to aggr1") + session + binding))
    cookie = struct.pack("<IQQHHIH", 7, 0x1112131415161718, 9, 3, 2, 0x0A000009, 4747)
    cookie += bytes([2, 1, 2, 3, 4, 5])
    show("cookie", keyed(16, KEY, context("sluice cookie 1") + cookie))


main()
