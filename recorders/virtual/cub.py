"""Temporary storage of the CUB primitives that torch's CUDA kernels call; sizes in bytes.

CUB aligns each part to 256 bytes and asks for 255 more to align the first (`AliasTemporaries`, cub/util_device.cuh);
a primitive that needs nothing still asks for one byte. Checked against sizes in recordings of real GPUs: 1 (radix sort
of up to 2048 pairs), 72,191 and 138,751 (of 4,096 and 8,192 pairs by 14 to 16 bits), 767 (select of few items), 17,663
(reduction on an A100: 108 SMs x 8 blocks x 5), 1,023 (scan).
"""

RADIX_DIGITS = 256  # 8 bits a pass
SELECT_TILE = 128 * 5  # 8-byte items; tuned policies take larger tiles, hence fewer bytes
SCAN_TILE = 128 * 7
ONESWEEP_PORTION = (1 << 28) - 1
OFFSET_BYTES = 8  # torch counts the items in 64 bits


def _aliased(*parts: int) -> int:
    total = sum(-(-part // 256) * 256 for part in parts)
    return total + 255 if total else 1


def reduce_bytes(items: int, sm_count: int, accumulator: int = 4) -> int:
    """DeviceReduce over `items`; one value per block of the first pass (8 blocks an SM, five waves)."""
    return 1 if items <= 4096 else _aliased(sm_count * 8 * 5 * accumulator)


def select_bytes(items: int) -> int:
    """DeviceSelect::Flagged: one 8-byte state per tile and 32 to pad (ScanTileState<int>)."""
    return _aliased((-(-items // SELECT_TILE) + 32) * 8)


def scan_bytes(items: int, item_bytes: int = 8) -> int:
    """DeviceScan: one state per tile and 32 to pad; a state is twice the item (at least 8)."""
    return _aliased((-(-items // SCAN_TILE) + 32) * max(8, 2 * item_bytes))


def radix_sort_pairs_bytes(items: int, key_bytes: int, value_bytes: int, bits: int) -> int:
    """DeviceRadixSort::SortPairs, the one-sweep algorithm (cub/device/dispatch/dispatch_radix_sort.cuh)."""
    widest = max(4, key_bytes, value_bytes)
    if items <= 256 * (19 * 4 // widest):
        return 1
    passes = -(-bits // 8)
    portions = -(-items // ONESWEEP_PORTION)
    tile = 384 * ((17 if key_bytes == 4 else 21) * 4 // widest)  # Policy800, which later cards keep for wide keys
    blocks = -(-min(items, ONESWEEP_PORTION) // tile)
    spare = items if passes > 1 else 0  # inputs must survive: a second buffer for keys and values
    return _aliased(
        portions * passes * RADIX_DIGITS * OFFSET_BYTES,
        blocks * RADIX_DIGITS * 4,
        spare * key_bytes,
        spare * value_bytes,
        portions * passes * 4,
    )


def index_bits(largest: int) -> int:
    """cuda::cub::get_num_bits: how many bits hold 0..largest."""
    return max(1, largest.bit_length())
