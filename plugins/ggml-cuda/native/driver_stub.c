// What ggml-cuda calls of NVIDIA's driver, for the linker: the library that is opened comes with the driver.
// With a type for the result only, as nobody calls these.
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
