// Finishing kernels: the last steps of a batch, on the device that trains on it, so that only bytes cross the bus.
//
// The arguments are one structure by value, twin to those of launch.rs. No kernel synchronises threads or shares memory,
// so each can be run as a loop on the host too: shim.h, with which the tests compare these kernels and host.rs.
// Compiled with --fmad=false: a product and a sum round apart, as on the CPU.
//
// Costs: a picture of 224 x 224 reads 147 KiB and writes 294 KiB (16 bit) or 588 KiB (f32); both in words of 8 or 16
// bytes where the width is a multiple of 8 or 4.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// ---- element types of results ----

struct F32 {
    static const int BYTES = 4;
    static __device__ u32 bits(float value) { return __float_as_uint(value); }
};

// IEEE half precision, rounded to nearest even.
struct F16 {
    static const int BYTES = 2;
    static __device__ u32 bits(float value) {
#ifdef __CUDA_ARCH__
        u16 half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
        return half;
#else
        u32 word = __float_as_uint(value);
        u32 sign = (word >> 16) & 0x8000u, magnitude = word & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return 0x7fffu;           // no number, as the instruction makes it
        if (magnitude >= 0x477ff000u) return sign | 0x7c00u;   // rounds past 65504
        if (magnitude >= 0x38800000u) {
            u32 rebased = magnitude - 0x38000000u;
            return sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
        }
        if (magnitude < 0x33000000u) return sign;
        u32 mantissa = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - (magnitude >> 23);
        u32 kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), middle = 1u << (shift - 1u);
        return sign | (kept + (rest > middle || (rest == middle && (kept & 1u))));
#endif
    }
};

// The upper half of a float, rounded to nearest even.
struct BF16 {
    static const int BYTES = 2;
    static __device__ u32 bits(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        u16 half;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(half) : "f"(value));
        return half;
#else
        u32 word = __float_as_uint(value);
        if ((word & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
        return (word + 0x7fffu + ((word >> 16) & 1u)) >> 16;
#endif
    }
};

// ---- words ----

template <int WORDS>
__device__ void store_words(u8* to, const u32 (&words)[WORDS]) {
    if constexpr (WORDS % 4 == 0) {
        for (int i = 0; i < WORDS / 4; i++) {
            uint4 word;
            word.x = words[4 * i], word.y = words[4 * i + 1], word.z = words[4 * i + 2], word.w = words[4 * i + 3];
            reinterpret_cast<uint4*>(to)[i] = word;
        }
    } else if constexpr (WORDS % 2 == 0) {
        for (int i = 0; i < WORDS / 2; i++) {
            uint2 word;
            word.x = words[2 * i], word.y = words[2 * i + 1];
            reinterpret_cast<uint2*>(to)[i] = word;
        }
    } else {
        for (int i = 0; i < WORDS; i++) reinterpret_cast<u32*>(to)[i] = words[i];
    }
}

// `COUNT` values from element `at` on.
template <class T, int COUNT>
__device__ void store(u8* output, u64 at, const float (&values)[COUNT]) {
    u8* to = output + at * T::BYTES;
    if constexpr (T::BYTES == 4) {
        u32 words[COUNT];
        for (int i = 0; i < COUNT; i++) words[i] = T::bits(values[i]);
        store_words<COUNT>(to, words);
    } else if constexpr (COUNT % 2 == 0) {
        u32 words[COUNT / 2];
        for (int i = 0; i < COUNT / 2; i++) words[i] = T::bits(values[2 * i]) | (T::bits(values[2 * i + 1]) << 16);
        store_words<COUNT / 2>(to, words);
    } else {
        for (int i = 0; i < COUNT; i++) reinterpret_cast<u16*>(to)[i] = (u16)T::bits(values[i]);
    }
}

// ---- pictures ----

struct PictureRow {
    u32 partner;   // the row that is mixed in; the row itself where none is
    u32 mirrored;
    float weight;  // of the row's own values outside of the box
    u32 top, left, bottom, right;  // inside, the partner's values stand alone
};

struct PictureArguments {
    const u8* input;  // rows x height x width x 3
    u8* output;
    const PictureRow* plan;
    u32 rows, height, width;
    u32 mixes;  // whether rows may have partners; for the choice of a kernel
    float scale[3], bias[3];  // result = value * scale + bias
};

// The `N` pixels of row `row` that stand at x, x + 1 ... once it is mirrored, if it is.
template <int N>
__device__ void load_pixels(const PictureArguments& a, u32 row, u32 y, u32 x, float (&values)[3 * N]) {
    bool mirrored = a.plan[row].mirrored != 0;
    u32 first = mirrored ? a.width - N - x : x;
    const u8* from = a.input + (((u64)row * a.height + y) * a.width + first) * 3;
    u8 bytes[3 * N];
    if constexpr (N == 8) {
        for (int i = 0; i < 3; i++) {
            uint2 word = reinterpret_cast<const uint2*>(from)[i];
            for (int j = 0; j < 4; j++) bytes[8 * i + j] = (u8)(word.x >> (8 * j));
            for (int j = 0; j < 4; j++) bytes[8 * i + 4 + j] = (u8)(word.y >> (8 * j));
        }
    } else if constexpr (N == 4) {
        for (int i = 0; i < 3; i++) {
            u32 word = reinterpret_cast<const u32*>(from)[i];
            for (int j = 0; j < 4; j++) bytes[4 * i + j] = (u8)(word >> (8 * j));
        }
    } else {
        for (int i = 0; i < 3 * N; i++) bytes[i] = from[i];
    }
    for (int i = 0; i < N; i++) {
        for (int c = 0; c < 3; c++) {
            // Both are read, so that the index is known when this is compiled and the bytes stay in registers.
            float plain = (float)bytes[3 * i + c], turned = (float)bytes[3 * (N - 1 - i) + c];
            values[3 * i + c] = (mirrored ? turned : plain) * a.scale[c] + a.bias[c];
        }
    }
}

template <class T, bool PLANES, int N>
__device__ void finish_pixels(const PictureArguments& a, u32 row, u32 y, u32 x) {
    float own[3 * N];
    load_pixels<N>(a, row, y, x, own);
    PictureRow plan = a.plan[row];
    if (plan.partner != row) {
        float other[3 * N];
        load_pixels<N>(a, plan.partner, y, x, other);
        bool inside_rows = y >= plan.top && y < plan.bottom;
        for (int i = 0; i < N; i++) {
            bool inside = inside_rows && x + i >= plan.left && x + i < plan.right;
            for (int c = 0; c < 3; c++) {
                float mixed = own[3 * i + c] * plan.weight + other[3 * i + c] * (1.0f - plan.weight);
                own[3 * i + c] = inside ? other[3 * i + c] : mixed;
            }
        }
    }
    u64 pixels = (u64)a.height * a.width, pixel = (u64)y * a.width + x;
    if constexpr (PLANES) {
        for (int c = 0; c < 3; c++) {
            float values[N];
            for (int i = 0; i < N; i++) values[i] = own[3 * i + c];
            store<T, N>(a.output, ((u64)row * 3 + c) * pixels + pixel, values);
        }
    } else {
        store<T, 3 * N>(a.output, ((u64)row * pixels + pixel) * 3, own);
    }
}

// The 4 values of a row that stand at element `at` and behind it, as they lie in memory, all of one line.
__device__ void load_elements(const PictureArguments& a, u32 row, u32 at, float (&values)[4]) {
    u32 line = a.width * 3, first = at / line * line, inside = at % line;
    bool mirrored = a.plan[row].mirrored != 0;
    const u8* from = a.input + (u64)row * a.height * line + first;
    u32 word = mirrored ? 0u : *reinterpret_cast<const u32*>(from + inside);
    for (u32 i = 0; i < 4; i++) {
        u32 x = (inside + i) / 3, c = (inside + i) % 3;
        u8 level = mirrored ? from[(a.width - 1 - x) * 3 + c] : (u8)(word >> (8 * i));
        float scale = c == 0 ? a.scale[0] : c == 1 ? a.scale[1] : a.scale[2];
        float bias = c == 0 ? a.bias[0] : c == 1 ? a.bias[1] : a.bias[2];
        values[i] = (float)level * scale + bias;
    }
}

// The same as finish_pixels for values of 4 bytes, channels last: there a warp's words lie side by side only if each thread
// takes one at a time. Where rows are mixed the arithmetic costs more than that gains.
__device__ void finish_elements(const PictureArguments& a, u32 row, u32 at) {
    float own[4];
    load_elements(a, row, at, own);
    PictureRow plan = a.plan[row];
    if (plan.partner != row) {
        float other[4];
        load_elements(a, plan.partner, at, other);
        u32 y = at / (a.width * 3);
        for (u32 i = 0; i < 4; i++) {
            u32 x = (at + i) % (a.width * 3) / 3;
            bool inside = y >= plan.top && y < plan.bottom && x >= plan.left && x < plan.right;
            float mixed = own[i] * plan.weight + other[i] * (1.0f - plan.weight);
            own[i] = inside ? other[i] : mixed;
        }
    }
    store<F32, 4>(a.output, (u64)row * a.height * a.width * 3 + at, own);
}

// One thread 3 words, a block's width apart, instead of 4 pixels side by side.
__device__ void pictures_by_words(const PictureArguments& a) {
    u32 words = a.width * a.height * 3 / 4, first = blockIdx.x * blockDim.x * 3 + threadIdx.x;
    for (u32 row = blockIdx.y; row < a.rows; row += gridDim.y) {
        for (u32 i = 0; i < 3; i++) {
            u32 word = first + i * blockDim.x;
            if (word < words) finish_elements(a, row, word * 4);
        }
    }
}

// One thread N pixels of a line; blocks in y are rows.
template <class T, bool PLANES, int N>
__device__ void pictures(const PictureArguments& a) {
    u32 groups = a.width / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= groups * a.height) return;
    for (u32 row = blockIdx.y; row < a.rows; row += gridDim.y) {
        finish_pixels<T, PLANES, N>(a, row, index / groups, index % groups * N);
    }
}

// ---- pictures that were decoded here ----

struct CropRow {
    u64 source;  // where its RGB begins, from the arena's start on
    u32 row, mirrored, stride;  // bytes from line to line
    u32 view_left, view_top, view_width, view_height;  // what the filter may read
    u32 upended;
    double left, top, width, height;  // what fills the row, from the view's corner on
};

struct CropArguments {
    const u8* arena;
    const CropRow* crops;
    u8* output;  // rows x height x width x 3
    u32 count, height, width, unused;
};

// The source pixels begin .. end that weigh in on result pixel `index`, and the triangle that weighs them.
struct Triangle {
    double center, narrow;
    u32 begin, end;
    float total;

    __device__ Triangle(double first, double length, u32 count, u32 limit, u32 index) {
        double scale = length / (double)count, wide = scale < 1.0 ? 1.0 : scale;
        center = first + ((double)index + 0.5) * scale;
        narrow = 1.0 / wide;
        double from = center - wide + 0.5, to = center + wide + 0.5;
        begin = from > 0.0 ? (u32)from : 0u;
        end = to < (double)limit ? (u32)to : limit;
        total = 0.0f;
        for (u32 at = begin; at < end; at++) total += weight(at);
    }

    __device__ float weight(u32 at) const {
        double apart = ((double)at - center + 0.5) * narrow;
        if (apart < 0.0) apart = -apart;
        return apart < 1.0 ? (float)(1.0 - apart) : 0.0f;
    }
};

__device__ float whole_level(float value) {
    float rounded = (float)(int)(value + 0.5f);
    return rounded > 255.0f ? 255.0f : rounded;
}

// One thread a pixel of the result; blocks in y are pictures. Down the columns first, rounded in between, as the CPU does.
__device__ void cut_out(const CropArguments& a) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= a.width * a.height) return;
    u32 y = index / a.width, x = index % a.width;
    for (u32 number = blockIdx.y; number < a.count; number += gridDim.y) {
        CropRow crop = a.crops[number];
        Triangle down(crop.top, crop.height, a.height, crop.view_height, y);
        Triangle along(crop.left, crop.width, a.width, crop.view_width, x);
        float sums[3] = {0.0f, 0.0f, 0.0f};
        for (u32 i = along.begin; i < along.end; i++) {
            float column[3] = {0.0f, 0.0f, 0.0f};
            for (u32 j = down.begin; j < down.end; j++) {
                const u8* from = a.arena + crop.source
                    + (u64)(crop.view_top + j) * crop.stride + (u64)(crop.view_left + i) * 3;
                float weight = down.weight(j);
                for (int c = 0; c < 3; c++) column[c] += (float)from[c] * weight;
            }
            float weight = along.weight(i);
            for (int c = 0; c < 3; c++) sums[c] += whole_level(column[c] / down.total) * weight;
        }
        u32 to_x = crop.mirrored ? a.width - 1 - x : x;
        u32 to_y = crop.upended ? a.height - 1 - y : y;
        u8* to = a.output + (((u64)crop.row * a.height + to_y) * a.width + to_x) * 3;
        for (int c = 0; c < 3; c++) to[c] = (u8)whole_level(sums[c] / along.total);
    }
}

// ---- features ----

struct Mask {
    u32 is_time, start, end;
};

struct FeatureArguments {
    const float* input;  // rows x frames x features, or rows x features x frames
    u8* output;
    const u32* lengths;       // frames of each row; behind them stands padding, which stays
    double* chunks;           // rows x chunks x features x (sum, sum of squared deviations from the chunk's mean)
    double* stats;            // rows x features x (mean, scale)
    float* row_means;         // of each row's normalised features
    const float* scales;      // features x (scale, bias), where they are of the whole data set
    const Mask* masks;        // rows x masks_per_row
    u32 rows, frames, features, feature_major;
    u32 chunk_count, masks_per_row, normalize, normalize_vars;
    double epsilon;
    float mask_value;
    u32 mask_with_mean;
};

const u32 CHUNK_FRAMES = 64;
const u32 BY_UTTERANCE = 1, BY_DATA_SET = 2;

__device__ u64 feature_at(const FeatureArguments& a, u32 row, u32 frame, u32 feature) {
    u64 inside = a.feature_major ? (u64)feature * a.frames + frame : (u64)frame * a.features + feature;
    return (u64)row * a.frames * a.features + inside;
}

// One thread one feature of a row over 64 frames.
__device__ void chunk_sums(const FeatureArguments& a) {
    u32 index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= a.chunk_count * a.features) return;
    u32 chunk = index / a.features, feature = index % a.features;
    for (u32 row = blockIdx.y; row < a.rows; row += gridDim.y) {
        u32 begin = chunk * CHUNK_FRAMES, end = begin + CHUNK_FRAMES;
        if (end > a.lengths[row]) end = a.lengths[row];
        double sum = 0.0, squares = 0.0;
        for (u32 t = begin; t < end; t++) sum += (double)a.input[feature_at(a, row, t, feature)];
        double mean = begin < end ? sum / (double)(end - begin) : 0.0;
        for (u32 t = begin; t < end; t++) {
            double apart = (double)a.input[feature_at(a, row, t, feature)] - mean;
            squares += apart * apart;
        }
        double* to = a.chunks + (((u64)row * a.chunk_count + chunk) * a.features + feature) * 2;
        to[0] = sum;
        to[1] = squares;
    }
}

// One thread one feature of a row: its chunks put together (Chan, Golub and LeVeque 1979).
__device__ void feature_stats(const FeatureArguments& a) {
    u32 feature = blockIdx.x * blockDim.x + threadIdx.x;
    if (feature >= a.features) return;
    for (u32 row = blockIdx.y; row < a.rows; row += gridDim.y) {
        double count = 0.0, mean = 0.0, squares = 0.0;
        for (u32 chunk = 0; chunk < a.chunk_count && chunk * CHUNK_FRAMES < a.lengths[row]; chunk++) {
            u32 begin = chunk * CHUNK_FRAMES, end = begin + CHUNK_FRAMES;
            if (end > a.lengths[row]) end = a.lengths[row];
            const double* from = a.chunks + (((u64)row * a.chunk_count + chunk) * a.features + feature) * 2;
            double more = (double)(end - begin), apart = from[0] / more - mean;
            squares += from[1] + apart * apart * count * more / (count + more);
            mean += apart * more / (count + more);
            count += more;
        }
        double* to = a.stats + ((u64)row * a.features + feature) * 2;
        to[0] = mean;
        to[1] = a.normalize_vars && count > 0.0 ? 1.0 / sqrt(squares / count + a.epsilon) : 1.0;
    }
}

__device__ float normalized(const FeatureArguments& a, u32 row, u32 feature, float value) {
    if (a.normalize == BY_UTTERANCE) {
        const double* stats = a.stats + ((u64)row * a.features + feature) * 2;
        return (float)(((double)value - stats[0]) * stats[1]);
    }
    if (a.normalize == BY_DATA_SET) return value * a.scales[2 * feature] + a.scales[2 * feature + 1];
    return value;
}

// One thread a row: the mean that masks are filled with, from the features' means, since normalising is linear.
__device__ void row_means(const FeatureArguments& a) {
    u32 row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= a.rows) return;
    double sum = 0.0;
    for (u32 feature = 0; feature < a.features; feature++) {
        double mean = a.stats[((u64)row * a.features + feature) * 2];
        if (a.normalize == BY_UTTERANCE) mean = 0.0;
        if (a.normalize == BY_DATA_SET) mean = mean * (double)a.scales[2 * feature] + (double)a.scales[2 * feature + 1];
        sum += mean;
    }
    a.row_means[row] = (float)(sum / (double)a.features);
}

// One thread N neighbours in memory.
template <class T, int N>
__device__ void features(const FeatureArguments& a) {
    u32 inner = a.feature_major ? a.frames : a.features, outer = a.feature_major ? a.features : a.frames;
    u32 groups = inner / N, index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= groups * outer) return;
    u32 line = index / groups, first = index % groups * N;
    for (u32 row = blockIdx.y; row < a.rows; row += gridDim.y) {
        u64 at = (u64)row * inner * outer + (u64)line * inner + first;
        float values[N];
        if constexpr (N == 4) {
            uint4 word = *reinterpret_cast<const uint4*>(a.input + at);
            values[0] = __uint_as_float(word.x), values[1] = __uint_as_float(word.y);
            values[2] = __uint_as_float(word.z), values[3] = __uint_as_float(word.w);
        } else {
            for (int i = 0; i < N; i++) values[i] = a.input[at + i];
        }
        const Mask* masks = a.masks + (u64)row * a.masks_per_row;
        for (int i = 0; i < N; i++) {
            u32 frame = a.feature_major ? first + i : line, feature = a.feature_major ? line : first + i;
            if (frame >= a.lengths[row]) continue;
            float value = normalized(a, row, feature, values[i]);
            for (u32 m = 0; m < a.masks_per_row; m++) {
                u32 along = masks[m].is_time ? frame : feature;
                if (along >= masks[m].start && along < masks[m].end) {
                    value = a.mask_with_mean ? a.row_means[row] : a.mask_value;
                }
            }
            values[i] = value;
        }
        store<T, N>(a.output, at, values);
    }
}

// ---- entries ----

#define PICTURES(type, name)                                                                                  \
    extern "C" __global__ void pictures_##name##_planes_8(PictureArguments a) { pictures<type, true, 8>(a); } \
    extern "C" __global__ void pictures_##name##_planes_4(PictureArguments a) { pictures<type, true, 4>(a); } \
    extern "C" __global__ void pictures_##name##_planes_1(PictureArguments a) { pictures<type, true, 1>(a); } \
    extern "C" __global__ void pictures_##name##_last_4(PictureArguments a) { pictures<type, false, 4>(a); }  \
    extern "C" __global__ void pictures_##name##_last_1(PictureArguments a) { pictures<type, false, 1>(a); }

#define FEATURES(type, name)                                                                          \
    extern "C" __global__ void features_##name##_4(FeatureArguments a) { features<type, 4>(a); }      \
    extern "C" __global__ void features_##name##_1(FeatureArguments a) { features<type, 1>(a); }

PICTURES(F32, f32)
PICTURES(F16, f16)
PICTURES(BF16, bf16)
extern "C" __global__ void pictures_f32_last_words(PictureArguments a) { pictures_by_words(a); }
extern "C" __global__ void pictures_f16_last_8(PictureArguments a) { pictures<F16, false, 8>(a); }
extern "C" __global__ void pictures_bf16_last_8(PictureArguments a) { pictures<BF16, false, 8>(a); }
FEATURES(F32, f32)
FEATURES(F16, f16)
FEATURES(BF16, bf16)
extern "C" __global__ void crops(CropArguments a) { cut_out(a); }
extern "C" __global__ void feature_chunks(FeatureArguments a) { chunk_sums(a); }
extern "C" __global__ void feature_statistics(FeatureArguments a) { feature_stats(a); }
extern "C" __global__ void feature_row_means(FeatureArguments a) { row_means(a); }
