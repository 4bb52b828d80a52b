// SPDX-License-Identifier: Apache-2.0
// Any bytes as the C ABI's structs: every call returns a code and, when it failed, a message; what was rejected has
// written nothing, and no call writes to its inputs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "abi_call.h"
#include "expect.h"
#include "score_function.h"
#include "strobe/strobe.h"

namespace strobe::fuzz {
namespace {

enum class How : std::uint8_t { directly, through_its_own_plan, through_another_plan };
constexpr int kHows = 3;

void expect_sentence(strobe_code code) {
  expect(code >= STROBE_OK && code <= STROBE_DEVICE_ERROR, "the code is one of the enum's, and not internal_error");
  expect((strobe_last_error()[0] == '\0') == (code == STROBE_OK), "there is a message when, and only when, it failed");
}

/// The functions of one pass under one name.
strobe_code run(const strobe_forward_arguments* a, const strobe_options* o, const strobe_execution* e) {
  return strobe_forward(a, o, e);
}
strobe_code run(const strobe_backward_arguments* a, const strobe_options* o, const strobe_execution* e) {
  return strobe_backward(a, o, e);
}
strobe_code plan(const strobe_forward_arguments* a, const strobe_options* o, const strobe_execution* e,
                 strobe_plan** to) {
  return strobe_plan_forward(a, o, e, to);
}
strobe_code plan(const strobe_backward_arguments* a, const strobe_options* o, const strobe_execution* e,
                 strobe_plan** to) {
  return strobe_plan_backward(a, o, e, to);
}
strobe_code run(const strobe_plan* plan, const strobe_forward_arguments* a, const strobe_execution* e) {
  return strobe_plan_run_forward(plan, a, e);
}
strobe_code run(const strobe_plan* plan, const strobe_backward_arguments* a, const strobe_execution* e) {
  return strobe_plan_run_backward(plan, a, e);
}

/// Makes a plan, looks at all of it and runs `arguments` by it.
template <class Arguments>
strobe_code run_planned(const Arguments* planned, const strobe_options* options, const Arguments* arguments,
                        const strobe_execution* execution) {
  strobe_plan* made = nullptr;
  strobe_code code = plan(planned, options, execution, &made);
  expect((made != nullptr) == (code == STROBE_OK), "there is a plan when, and only when, it could be made");
  if (made == nullptr) return code;
  expect(strobe_plan_explain(made)[0] != '\0', "a plan explains itself");
  static_cast<void>(strobe_plan_workspace_size(made));
  code = run(made, arguments, execution);
  strobe_plan_destroy(made);
  return code;
}

template <class Arguments>
void call(How how, const EditedCall<Arguments>& valid, std::span<const std::uint8_t> edits) {
  EditedCall<Arguments> edited = valid;
  apply_edits(std::as_writable_bytes(std::span(&edited, 1)), edits);
  Setting& setting = edited.setting;

  TensorMemory memory;
  strobe_sequences& sequences = sequences_of(edited.arguments);
  strobe_tensor* const lengths[] = {&sequences.cu_seqlens_q, &sequences.cu_seqlens_k, &sequences.seqused_q,
                                    &sequences.seqused_k};
  for (std::size_t i = 0; i < std::size(lengths); ++i) {
    const auto& of = setting.lengths[i];
    memory.place_input(*lengths[i], {reinterpret_cast<const std::uint8_t*>(of.data()), sizeof(of)});
  }
  for (strobe_tensor* tensor : inputs_of(edited.arguments)) memory.place_input(*tensor, setting.content);
  for (strobe_tensor* tensor : outputs_of(edited.arguments)) memory.place_output(*tensor, setting.content);
  const auto workspace = keep_promises(setting.execution);
  edited.arguments.random_on_device = readable_state(edited.arguments.random_on_device);
  memory.place_input(setting.capture, setting.content);
  memory.place_output(setting.d_capture, setting.content);
  const CaptureLists lists(edited.arguments, setting);

  const StructMemory arguments(edited.arguments);
  const StructMemory options(setting.options);
  const StructMemory execution(setting.execution);
  const auto* a = arguments.as<Arguments>();
  const auto* o = setting.null_options % 2 == 1 ? nullptr : options.as<strobe_options>();
  const auto* e = setting.null_execution % 2 == 1 ? nullptr : execution.as<strobe_execution>();
  const strobe_code code = how == How::directly               ? run(a, o, e)
                           : how == How::through_its_own_plan ? run_planned(a, o, a, e)
                                                              : run_planned(&valid.arguments, o, a, e);
  expect_sentence(code);
  expect(memory.inputs_unchanged(), "inputs are never written");
  expect(code == STROBE_OK || memory.unchanged(), "a rejected call writes nothing");
}

/// What the mask functions take.
struct MaskCall {
  strobe_tensor mask;
  strobe_random_state random;
  std::int64_t left;
  std::int64_t right;
  std::array<std::uint8_t, 16> content;
  float dropout;
  std::uint32_t function;
};

void call_mask(std::span<const std::uint8_t> edits) {
  MaskCall edited{};
  edited.mask = {.dtype = STROBE_UINT8, .rank = 4, .shape = {1, 2, 3, 4}, .strides = {24, 12, 4, 1}};
  edited.left = 1;
  edited.dropout = 0.5F;
  apply_edits(std::as_writable_bytes(std::span(&edited, 1)), edits);
  TensorMemory memory;
  memory.place_output(edited.mask, edited.content);
  const auto code = [&] {
    switch (edited.function % 4) {
      case 0: return strobe_dropout_mask(edited.dropout, &edited.random, &edited.mask);
      case 1: return strobe_local_block_mask(&edited.mask, edited.left, edited.right);
      case 2: return strobe_strided_block_mask(&edited.mask, edited.left);
      default: return strobe_butterfly_block_mask(&edited.mask);
    }
  }();
  expect_sentence(code);
  expect(code == STROBE_OK || memory.unchanged(), "a rejected call writes nothing");
}

}  // namespace
}  // namespace strobe::fuzz

/// The first byte chooses the function, the others edit its call.
// NOLINTNEXTLINE(readability-identifier-naming): libFuzzer calls it by this name
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace strobe::fuzz;
  if (size == 0) return 0;
  const std::span<const std::uint8_t> edits(data + 1, size - 1);
  const int choice = data[0] % (2 * kHows + 1);
  if (choice == 2 * kHows) {
    call_mask(edits);
  } else if (choice < kHows) {
    call(static_cast<How>(choice), valid_forward(), edits);
  } else {
    call(static_cast<How>(choice - kHows), valid_backward(), edits);
  }
  return 0;
}
