// SPDX-License-Identifier: Apache-2.0
#include "gradient_case.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace strobe::test {
namespace {

void expect_gradient(const char* name, const ConstTensorView& actual, const reference::BoundedTensor& expected) {
  const reference::WorstElement worst = reference::worst_element(actual, expected);
  EXPECT_LE(worst.ratio, 1.0) << name << ": " << reference::describe(worst, actual);
}

}  // namespace

SparseShape random_trainable_shape(std::uint64_t seed) {
  SparseShape shape = random_shape(seed);
  Random random(seed + 1'000'000);
  shape.lse = true;
  shape.head_dim = random.one_of<std::int64_t>({1, 8, 40, 64, 100, 128});
  if (random.chance(0.05)) shape.head_dim = 576;
  shape.head_dim_v = random.one_of<std::int64_t>({shape.head_dim, 24, 64, 70});
  for (SourceShape& s : shape.sources) {
    s.k_format = s.v_format = {};
    s.layout = random.one_of({KeyLayout::batched, KeyLayout::packed});
    s.v_apart = shape.head_dim_v > shape.head_dim || random.chance(0.5);
    s.topk = std::min<std::int64_t>(s.topk, 130);
  }
  return shape;
}

SparseShape random_trainable_gpu_shape(std::uint64_t seed) {
  SparseShape shape = random_trainable_shape(seed);
  Random random(seed + 2'000'000);
  shape.dtype = random.one_of({DType::bfloat16, DType::float16});
  shape.contiguous = random.chance(0.6);
  if (random.chance(0.2)) shape.group = random.one_of<std::int64_t>({15, 16, 17, 40, 64, 72, 128});
  for (SourceShape& s : shape.sources) s.dtype = shape.dtype;
  return shape;
}

GradientCase::GradientCase(const SparseShape& shape, std::uint64_t seed) : one(shape, seed) {
  Random random(seed + 7);
  const Placement placement{.layout = random.one_of({Layout::contiguous, Layout::padded}), .guard = Guard::bytes};
  const auto like = [&](const ConstTensorView& view) {
    const std::vector<std::int64_t> extents(view.shape.begin(), view.shape.begin() + view.rank);
    return GuardedTensor(view.dtype, extents, placement, random);
  };
  const SparseForwardArguments& a = one.arguments();
  d_o = like(a.o);
  d_lse = like(a.lse);
  dq = like(a.q);
  for (std::int64_t i = 0; i < d_o.size(); ++i) d_o.set(i, random.normal());
  for (std::int64_t i = 0; i < d_lse.size(); ++i) d_lse.set(i, random.normal());
  const Status status = sparse_forward(a, shape.options);
  EXPECT_TRUE(status.ok()) << status.message();
  arguments.forward = a;
  arguments.d_o = d_o.view();
  if (random.chance(0.5)) arguments.d_lse = d_lse.view();
  arguments.dq = dq.view();
  if (shape.sink) {
    d_sink = like(a.sink);
    arguments.d_sink = d_sink.view();
  }
  for (std::size_t i = 0; i < shape.sources.size(); ++i) {
    dk[i] = like(a.sources[i].k);
    arguments.gradients[i].dk = dk[i].view();
    if (!a.sources[i].v.given()) continue;
    dv[i] = like(a.sources[i].v);
    arguments.gradients[i].dv = dv[i].view();
  }
}

std::vector<GuardedTensor*> GradientCase::outputs() {
  std::vector<GuardedTensor*> all = {&dq};
  if (arguments.d_sink.given()) all.push_back(&d_sink);
  for (std::size_t i = 0; i < arguments.gradients.size(); ++i) {
    if (arguments.gradients[i].dk.given()) all.push_back(&dk[i]);
    if (arguments.gradients[i].dv.given()) all.push_back(&dv[i]);
  }
  return all;
}

void GradientCase::expect_gradients(const reference::SparseBackwardResult& expected) {
  expect_gradient("dq", dq.view(), expected.dq);
  if (arguments.d_sink.given()) expect_gradient("d_sink", d_sink.view(), expected.d_sink);
  for (std::size_t i = 0; i < arguments.gradients.size(); ++i) {
    if (arguments.gradients[i].dk.given()) expect_gradient("dk", dk[i].view(), expected.dk[i]);
    if (arguments.gradients[i].dv.given()) expect_gradient("dv", dv[i].view(), expected.dv[i]);
  }
  for (const GuardedTensor* output : outputs()) EXPECT_TRUE(output->guards_intact());
}

}  // namespace strobe::test
