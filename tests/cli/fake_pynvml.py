"""nvidia-ml-py's module over a made-up machine: the functions, records and errors that NVML's C API has.

Records are those of nvml.h: nvmlMemory_t (total, free, used), nvmlMemory_v2_t (version, total, reserved, free, used),
nvmlProcessInfo_t (pid, usedGpuMemory, ids); NVML_VALUE_NOT_AVAILABLE is None in Python.
"""

from types import SimpleNamespace

NVML_DEVICE_MIG_ENABLE = 1
nvmlMemory_v2 = 0x02000028  # noqa: N816


class NVMLError(Exception):
    def __init__(self, value):
        self.value = value
        super().__init__({1: "Uninitialized", 3: "Not Supported", 9: "Driver Not Loaded", 6: "Not Found"}[value])


class Machine:
    """Put in place of the module `pynvml`: every call is checked to come between nvmlInit and nvmlShutdown."""

    NVMLError = NVMLError
    NVML_DEVICE_MIG_ENABLE = NVML_DEVICE_MIG_ENABLE
    nvmlMemory_v2 = nvmlMemory_v2  # noqa: N815

    def __init__(self, cards, driver="570.86.10", loaded=True):
        self.cards = cards
        self.driver = driver
        self.loaded = loaded
        self.depth = 0

    def nvmlInit(self):
        if not self.loaded:
            raise NVMLError(9)
        self.depth += 1

    def nvmlShutdown(self):
        self.depth -= 1

    def _on(self):
        if not self.depth:
            raise NVMLError(1)

    def nvmlSystemGetDriverVersion(self):
        self._on()
        return self.driver

    def nvmlDeviceGetCount(self):
        self._on()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index):
        self._on()
        return self.cards[index]

    def nvmlDeviceGetName(self, handle):
        return handle["name"].encode()  # bytes up to nvidia-ml-py 11

    def nvmlDeviceGetUUID(self, handle):
        return handle["uuid"]

    def nvmlDeviceGetMemoryInfo(self, handle, version=None):
        total, used, reserved = handle["total"], handle["used"], handle.get("reserved", 0)
        if version is not None:
            if handle.get("old"):
                raise NVMLError(3)
            return SimpleNamespace(version=version, total=total, reserved=reserved, free=total - used, used=used)
        return SimpleNamespace(total=total, free=total - used - reserved, used=used + reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=used, gpuInstanceId=None, computeInstanceId=None)
            for pid, used in handle.get("processes", [])
        ]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle):
        raise NVMLError(3)

    def nvmlDeviceGetMigMode(self, handle):
        if "mig" not in handle:
            raise NVMLError(3)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle):
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle, index):
        if index >= len(handle["mig"]):
            raise NVMLError(6)
        return handle["mig"][index]
