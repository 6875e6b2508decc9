#include "src/formats/relayout.hpp"

#include <algorithm>
#include <cstring>

#include "src/formats/packed_keys.hpp"
#include "src/formats/repack_scales.hpp"
#include "src/kernels/dense_layout.hpp"
#include "src/kernels/screen.hpp"
#include "src/kernels/screen_join.hpp"

namespace samara::formats {
namespace {

using kernels::kRowGroup;
using kernels::Layout;
using kernels::Matrix;

Matrix chosen_ternary(const Matrix& stored, TernaryLayout ternary) {
    const bool plain = stored.layout == Layout::kTernaryDense && ternary == TernaryLayout::kTwoBit;
    return plain ? with(stored, Layout::kTernary) : packed_ternary(stored, ternary);
}

Matrix chosen_head(const Matrix& stored, HeadLayout head) {
    if (head == HeadLayout::kSplit) return split_layout(stored);
    return stored.layout == Layout::kNibbleKSplit ? with(stored, Layout::kNibbleK) : stored;
}

class Planner {
  public:
    Planner(const Checkpoint& packed, HeadLayout head, TernaryLayout ternary)
        : packed_(packed),
          head_(head),
          ternary_(ternary),
          names_(packed.metadata().get_strings(packed_keys::kMatrixNames)),
          tensors_(packed.metadata().get_strings(packed_keys::kMatrixTensors)) {}

    PackedPlan run() {
        if (packed_.metadata().has(packed_keys::kExperts)) {
            expert_numbers_ = packed_.metadata().get_ints(packed_keys::kExperts);
        }
        for (const Tensor& tensor : packed_.tensors()) add(tensor);
        for (size_t i = 0; i < names_.size(); ++i) {
            Matrix m = chosen(names_[i], packed_matrix(packed_, names_[i]));
            m.data = nullptr;
            plan_.matrices.push_back({names_[i], tensors_[i], m});
        }
        if (!changes_) {
            throw Error(ErrorCode::kInvalidArgument,
                        packed_.file() + ": is a packed file already, and in the layouts that were asked for");
        }
        return std::move(plan_);
    }

  private:
    void add(const Tensor& tensor) {
        PackedSection section;
        section.name = tensor.name;
        section.type = tensor.type;
        section.shape = tensor.shape;
        section.slice = {.tensor = &tensor, .rows = tensor.rows()};
        section.bytes = tensor.data.size();
        section.input_bytes = tensor.data.size();
        if (tensor.type == TensorType::kI8) describe_blob(tensor, section);
        plan_.input_bytes += section.input_bytes;
        plan_.output_bytes += static_cast<uint64_t>(
            kernels::round_up(static_cast<int64_t>(section.bytes), static_cast<int64_t>(kPackedAlignment)));
        plan_.sections.push_back(std::move(section));
    }

    /// A tensor that no key calls a matrix or a layer's experts is copied.
    void describe_blob(const Tensor& tensor, PackedSection& section) {
        const auto found = std::find(tensors_.begin(), tensors_.end(), tensor.name);
        if (found != tensors_.end()) {
            const std::string& name = names_[static_cast<size_t>(found - tensors_.begin())];
            section.kind = SectionKind::kMatrix;
            section.stored = packed_matrix(packed_, name);
            section.matrix = chosen(name, section.stored);
            changes_ = changes_ || section.matrix.layout != section.stored.layout;
            section.bytes = static_cast<uint64_t>(kernels::matrix_bytes(section.matrix));
            section.shape = {section.bytes};
            return;
        }
        for (size_t at = 0; at + packed_keys::kExpertNumbers <= expert_numbers_.size();
             at += packed_keys::kExpertNumbers) {
            const auto layer = static_cast<int>(expert_numbers_[at]);
            if (tensor.name == packed_keys::expert_tensor(layer)) return describe_experts(layer, section);
        }
    }

    void describe_experts(int layer, PackedSection& section) {
        section.kind = SectionKind::kExperts;
        section.layer = layer;
        section.stored_experts = packed_experts(packed_, layer);
        const ExpertLayout& stored = section.stored_experts.layout;
        section.experts = expert_layout(chosen_ternary(stored.gate, ternary_), chosen_ternary(stored.up, ternary_),
                                        chosen_ternary(stored.down, ternary_));
        section.count = static_cast<uint64_t>(section.stored_experts.count);
        section.bytes = section.experts.bytes * section.count;
        section.shape = {section.experts.bytes, section.count};
        changes_ = changes_ || section.experts.gate.layout != stored.gate.layout ||
                   section.experts.up.layout != stored.up.layout || section.experts.down.layout != stored.down.layout;
    }

    Matrix chosen(const std::string& name, const Matrix& stored) const {
        if (name == "output.weight") return chosen_head(stored, head_);
        return name == "token_embd.weight" ? stored : chosen_ternary(stored, ternary_);
    }

    const Checkpoint& packed_;
    HeadLayout head_;
    TernaryLayout ternary_;
    const std::vector<std::string>& names_;
    const std::vector<std::string>& tensors_;
    std::vector<int64_t> expert_numbers_;
    bool changes_ = false;
    PackedPlan plan_;
};

}  // namespace

PackedPlan plan_relayout(const Checkpoint& packed, HeadLayout head, TernaryLayout ternary) {
    return Planner(packed, head, ternary).run();
}

void relayout(const Matrix& from, const Matrix& to, const std::string& tensor, std::span<std::byte> out) {
    const auto from_bytes = static_cast<size_t>(kernels::matrix_bytes(from));
    if (from.layout == to.layout) {
        std::memcpy(out.data(), from.data, from_bytes);
        return;
    }
    std::fill(out.begin(), out.end(), std::byte{0});  // what pads a row group
    const int groups = (from.rows + kRowGroup - 1) / kRowGroup;
    const int64_t from_group = kernels::row_group_bytes(from), to_group = kernels::row_group_bytes(to);
    for (int g = 0; g < groups; ++g) {
        const std::byte* source = from.data + g * from_group;
        std::byte* target = out.data() + g * to_group;
        switch (to.layout) {
            case Layout::kTernary:
                kernels::unpack_dense_group(source, from.cols, target);
                break;
            case Layout::kTernaryDense:
                if (kernels::pack_dense_group(source, from.cols, target)) break;
                throw Error(ErrorCode::kFormat, "tensor '" + tensor + "', one of the rows from " +
                                                    std::to_string(g * kRowGroup) +
                                                    " on: ternary code 3, codes 0 to 2 expected: the model it was "
                                                    "packed from is damaged. Layout 2bit keeps such codes, dense "
                                                    "cannot");
            case Layout::kNibbleK:
                kernels::join_row_group(from, g, target);
                break;
            default:
                kernels::split_row_group(source, to, g, out.data());
        }
    }
    if (to.layout == Layout::kTernary || to.layout == Layout::kTernaryDense) {
        const auto scales = static_cast<size_t>(groups * from_group);
        std::memcpy(out.data() + groups * to_group, from.data + scales, from_bytes - scales);
    }
}

}  // namespace samara::formats
