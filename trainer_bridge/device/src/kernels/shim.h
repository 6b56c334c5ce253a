// What finish.cu needs of CUDA, for a C++ compiler of the host: blocks and threads become loops. For tests.
#include <cmath>
#include <cstring>

#define __device__
#define __global__

struct Index3 {
    unsigned int x, y, z;
};
static thread_local Index3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) uint2 {
    unsigned int x, y;
};
struct alignas(16) uint4 {
    unsigned int x, y, z, w;
};

static inline unsigned int __float_as_uint(float value) {
    unsigned int bits;
    memcpy(&bits, &value, 4);
    return bits;
}
static inline float __uint_as_float(unsigned int bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
using std::sqrt;

// Runs `kernel` over a grid of blocks (x, y) of `threads` threads.
template <class Arguments>
static void run_grid(void (*kernel)(Arguments), const void* arguments, unsigned int x, unsigned int y, unsigned int threads) {
    Arguments given;
    memcpy(&given, arguments, sizeof given);
    gridDim = {x, y, 1};
    blockDim = {threads, 1, 1};
    for (unsigned int by = 0; by < y; by++)
        for (unsigned int bx = 0; bx < x; bx++)
            for (unsigned int t = 0; t < threads; t++) {
                blockIdx = {bx, by, 0};
                threadIdx = {t, 0, 0};
                kernel(given);
            }
}
