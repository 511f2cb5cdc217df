// The functions of NVIDIA's driver that ggml-cuda calls, for the linker only. At run time the driver's own library is
// opened, so nothing calls these, and their parameters are left out.
int cuDeviceGet(void) { return 999; } // CUDA_ERROR_UNKNOWN
int cuDeviceGetAttribute(void) { return 999; }
int cuGetErrorString(void) { return 999; }
int cuMemAddressFree(void) { return 999; }
int cuMemAddressReserve(void) { return 999; }
int cuMemCreate(void) { return 999; }
int cuMemGetAllocationGranularity(void) { return 999; }
int cuMemMap(void) { return 999; }
int cuMemRelease(void) { return 999; }
int cuMemSetAccess(void) { return 999; }
int cuMemUnmap(void) { return 999; }
