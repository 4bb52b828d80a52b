// One variant of a kernel is one value of KernelConfig: a structural type, so that it is the kernel's only template
// argument, printed, compared and hashed by its fields. Plain constexpr C++ without std headers: the host's compiler
// reads it for the launch and NVRTC for the kernel.
#pragma once

namespace strobe {

/// What Q, K, V and O hold; sums and softmax are float32 always.
enum class Element : unsigned char { bf16, fp16 };

struct KernelConfig {
  Element element = Element::bf16;
  int head_dim = 128;  // of Q and K as compiled: 32, 64, 96, 128, 192 or 256; narrower heads are padded by TMA's bounds
  int head_dim_v = 128;         // of V and O, likewise
  int consumer_warpgroups = 2;  // each owns 64 rows of Q
  int block_n = 128;            // keys per step
  int stages = 2;               // of the K ring and of the V ring
  int q_stages = 1;  // of each warpgroup's Q: with 2, the next tile's rows arrive while this one's are in use

  // What the call needs.
  bool mask_right = false;  // causal, or a window bounded on the right
  bool mask_left = false;   // a window bounded on the left
  bool chunked = false;     // a query sees keys of its own chunk only; both masks above are on, too
  bool varlen = false;      // packed sequences or used lengths
  bool softcap = false;
  bool alibi = false;        // a slope per head times the distance from the diagonal; scale_first is on, too
  bool sink = false;         // a logit per head that joins the row's sum and has no value
  bool max_logits = false;   // each head's largest score is wanted, too
  bool scale_first = false;  // scores are scaled before their maximum is taken: for scales that are not positive

  // The ingredients of the FlashAttention-3 paper.
  bool warp_specialized = true;  // TMA issued by warps of its own, registers moved to the consumers by setmaxnreg
  bool ping_pong = true;         // one warpgroup's softmax runs under the other's GEMMs
  bool two_stage = true;         // inside a warpgroup: softmax of this block under P V of the previous one
  bool persistent = true;        // one CTA per multiprocessor walks over the tiles
  int cluster = 1;               // CTAs that share K and V by TMA multicast

  // Query heads of one key head that share a tile, its rows being position * packed_heads + head: so that few queries
  // fill it. A power of two, at most 64.
  int packed_heads = 1;

  // Tiles that differ in length. At most one of these:
  bool listed = false;   // the host knows the lengths and deals tiles out, longest first
  bool ordered = false;  // the lengths lie on the device: each CTA orders the sequences itself

  bool debug = false;  // waits trap instead of hanging, shared memory starts as NaN

  bool operator==(const KernelConfig&) const = default;
};

constexpr int kWarpSize = 32;
constexpr int kWarpsPerWarpgroup = 4;
constexpr int kWarpgroupSize = kWarpSize * kWarpsPerWarpgroup;
constexpr int kRowsPerWarpgroup = 64;  // M of every WGMMA

constexpr int block_m(const KernelConfig& c) { return kRowsPerWarpgroup * c.consumer_warpgroups; }

constexpr int threads_per_block(const KernelConfig& c) {
  return kWarpgroupSize * (c.consumer_warpgroups + (c.warp_specialized ? 1 : 0));
}

}  // namespace strobe
