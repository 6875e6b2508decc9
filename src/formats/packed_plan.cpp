#include "src/formats/packed_plan.hpp"

#include <algorithm>
#include <charconv>
#include <set>

#include "src/formats/packed_keys.hpp"
#include "src/formats/repack_rows.hpp"

namespace samara::formats {
namespace {

using kernels::Matrix;

/// "blk.17.attn_q.weight" -> layer 17, rest "attn_q.weight"; layer -1 and the whole name otherwise.
struct BlockName {
    int layer = -1;
    std::string_view rest;
};
BlockName split_name(std::string_view name) {
    BlockName found{.rest = name};
    if (!name.starts_with("blk.")) return found;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + 4, end, found.layer);
    if (error != std::errc() || stop == end || *stop != '.' || found.layer < 0) return {.rest = name};
    found.rest = std::string_view(stop + 1, static_cast<size_t>(end - stop - 1));
    return found;
}

bool is_projection(std::string_view rest) {
    constexpr std::string_view kNames[] = {"attn_q.weight",   "attn_k.weight", "attn_v.weight",  "attn_output.weight",
                                           "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"};
    return std::find(std::begin(kNames), std::end(kNames), rest) != std::end(kNames);
}

bool is_expert_part(std::string_view rest) {
    return rest == "ffn_gate_exps.weight" || rest == "ffn_up_exps.weight" || rest == "ffn_down_exps.weight" ||
           rest == "ffn_gate_up_exps.weight";
}

/// The names of the weights that a tensor is, or holds fused.
std::vector<std::string> parts_of(const std::string& name, const BlockName& block) {
    const std::string prefix = name.substr(0, name.size() - block.rest.size());
    if (block.layer >= 0 && block.rest == "attn_qkv.weight") {
        return {prefix + "attn_q.weight", prefix + "attn_k.weight", prefix + "attn_v.weight"};
    }
    if (block.layer >= 0 && block.rest == "ffn_gate_up.weight") {
        return {prefix + "ffn_gate.weight", prefix + "ffn_up.weight"};
    }
    return {name};
}

class Planner {
  public:
    Planner(const Checkpoint& checkpoint, Ternarise ternarise, HeadLayout head, TernaryLayout ternary, bool flash_index,
            const PlanStep& step)
        : checkpoint_(checkpoint),
          ternarise_(ternarise),
          head_(head),
          ternary_(ternary),
          flash_index_(flash_index),
          step_(step) {}

    PackedPlan run() {
        std::set<int> expert_layers;
        for (const Tensor& tensor : checkpoint_.tensors()) {
            const BlockName block = split_name(tensor.name);
            if (block.layer >= 0 && is_expert_part(block.rest)) {
                expert_layers.insert(block.layer);
            } else {
                add_tensor(tensor, block);
            }
        }
        if (checkpoint_.find("output.weight") == nullptr) add_tied_head();
        if (flash_index_) add_flash_index();
        // Experts come last: what every token reads lies together at the front.
        for (const int layer : expert_layers) add_experts(layer);
        for (const PackedSection& section : plan_.sections) {
            plan_.input_bytes += section.input_bytes;
            plan_.output_bytes += static_cast<uint64_t>(
                kernels::round_up(static_cast<int64_t>(section.bytes), static_cast<int64_t>(kPackedAlignment)));
        }
        return std::move(plan_);
    }

  private:
    void add_tensor(const Tensor& tensor, const BlockName& block) {
        if (tensor.name == "token_embd.weight") return add_embedding(tensor);
        if (tensor.name == "output.weight") return add_matrix(tensor.name, whole(tensor), Role::kHead);
        if (block.layer >= 0 && block.rest == "ffn_gate_inp.weight") {
            return add_matrix(tensor.name, whole(tensor), Role::kRouter);
        }
        if (tensor.shape.size() == 1 && is_float_type(tensor.type)) return add_plain(tensor, SectionKind::kToF32);
        const std::vector<std::string> parts = parts_of(tensor.name, block);
        if (parts.size() == 1 && !(block.layer >= 0 && is_projection(block.rest))) {
            return add_plain(tensor, SectionKind::kCopy);
        }
        for (const std::string& part : parts) add_matrix(part, *find_slice(checkpoint_, part), Role::kProjection);
    }

    static Slice whole(const Tensor& tensor) { return {.tensor = &tensor, .rows = tensor.rows()}; }

    /// Rows of the embedding are looked up, not multiplied: GGUF types stay as they are.
    void add_embedding(const Tensor& tensor) {
        if (tensor.type < TensorType::kMlx2Row) return add_plain(tensor, SectionKind::kCopy);
        add_matrix(tensor.name, whole(tensor), Role::kHead);
    }

    void add_plain(const Tensor& tensor, SectionKind kind) {
        const bool to_f32 = kind == SectionKind::kToF32;
        if (tensor.type >= TensorType::kMlx2Row || !tensor.pieces.empty()) {
            throw Error(ErrorCode::kUnsupported,
                        checkpoint_.file() + ": tensor '" + tensor.name +
                            "': a packed file has no place for a tensor of this name and type");
        }
        PackedSection section;
        section.kind = kind;
        section.name = tensor.name;
        section.type = to_f32 ? TensorType::kF32 : tensor.type;
        section.shape = tensor.shape;
        section.slice = whole(tensor);
        section.input_bytes = tensor.data.size();
        section.bytes = to_f32 ? 4 * tensor.elements() : tensor.data.size();
        add(std::move(section));
        step_(tensor.data.size());
    }

    void add_matrix(const std::string& name, const Slice& slice, Role role) {
        if (slice.tensor->experts() != 1 || slice.tensor->shape.size() < 2) {
            throw Error(ErrorCode::kFormat, checkpoint_.file() + ": tensor '" + slice.tensor->name + "' has " +
                                                std::to_string(slice.tensor->shape.size()) + " dimensions, 2 expected");
        }
        PackedSection section;
        section.kind = SectionKind::kMatrix;
        section.name = std::string(packed_keys::kPrefix) + name;
        section.slice = slice;
        section.matrix = choose_layout(slice, role, ternarise_);
        if (role == Role::kProjection) section.matrix = packed_ternary(section.matrix, ternary_);
        if (name == "output.weight" && head_ == HeadLayout::kSplit) section.matrix = split_layout(section.matrix);
        section.input_bytes = slice_bytes(slice);
        section.bytes = static_cast<uint64_t>(kernels::matrix_bytes(section.matrix));
        section.shape = {section.bytes};
        plan_.matrices.push_back({name, section.name, section.matrix});
        const uint64_t read = section.input_bytes;
        add(std::move(section));
        drop_slice(checkpoint_, slice);
        step_(read);
    }

    /// A tied head is stored once more in the layout it is multiplied in, unless the embedding's bytes are that layout.
    void add_tied_head() {
        const Tensor& embedding = checkpoint_.get("token_embd.weight");
        if (is_float_type(embedding.type)) {
            const Matrix matrix = choose_layout(whole(embedding), Role::kHead);
            plan_.matrices.push_back({"output.weight", embedding.name, matrix});
        } else if (embedding.type >= TensorType::kMlx2Row) {
            const auto stored = std::find_if(plan_.matrices.begin(), plan_.matrices.end(),
                                             [&](const PackedName& m) { return m.name == embedding.name; });
            plan_.matrices.push_back({"output.weight", stored->tensor, stored->matrix});
        } else {
            add_matrix("output.weight", whole(embedding), Role::kHead);
        }
    }

    void add_flash_index() {
        const Tensor* own = checkpoint_.find("output.weight");
        const Tensor& head = own != nullptr ? *own : checkpoint_.get("token_embd.weight");
        if (head.type >= TensorType::kMlx2Row || !head.pieces.empty()) {
            throw Error(ErrorCode::kUnsupported, checkpoint_.file() + ": tensor '" + head.name + "' of type " +
                                                     std::string(type_traits(head.type)->name) +
                                                     ": a flash index can be made for GGUF's types only");
        }
        const auto vocab = static_cast<int64_t>(head.rows());
        auto flash = std::make_shared<FlashTensors>();
        flash->index = build_flash_index(head, control_tokens(checkpoint_.metadata(), vocab), [this] { step_(0); });
        const std::vector<int32_t>& order = flash->index.order;
        const size_t row_bytes = head.data.size() / head.rows();
        flash->row_bytes.resize(head.data.size());
        for (size_t i = 0; i < order.size(); ++i) {
            const auto row = head.data.subspan(static_cast<size_t>(order[i]) * row_bytes, row_bytes);
            std::copy(row.begin(), row.end(), flash->row_bytes.begin() + static_cast<int64_t>(i * row_bytes));
        }
        checkpoint_.drop(head.data);
        flash->rows = head;
        flash->rows.name = packed_keys::kFlashRows;
        flash->rows.data = flash->row_bytes;
        add_matrix(flash->rows.name, whole(flash->rows), Role::kHead);

        flash->centroids.name = packed_keys::kFlashCentroids;
        flash->centroids.type = TensorType::kF32;
        flash->centroids.shape = {head.cols(), flash->index.centroids.size() / head.cols()};
        flash->centroids.data = std::as_bytes(std::span(flash->index.centroids));
        add_matrix(flash->centroids.name, whole(flash->centroids), Role::kRouter);

        for (const int32_t id : order) {
            for (int shift = 0; shift < 32; shift += 8)
                flash->order_bytes.push_back(static_cast<std::byte>(id >> shift));
        }
        flash->order.name = packed_keys::kFlashOrder;
        flash->order.type = TensorType::kI8;
        flash->order.shape = {flash->order_bytes.size()};
        flash->order.data = flash->order_bytes;
        add_plain(flash->order, SectionKind::kCopy);
        plan_.flash = std::move(flash);
    }

    Slice expert_part(int layer, const char* part) const {
        const std::string name = "blk." + std::to_string(layer) + "." + part + ".weight";
        const std::optional<Slice> slice = find_slice(checkpoint_, name);
        if (!slice) throw Error(ErrorCode::kFormat, checkpoint_.file() + ": tensor '" + name + "' is missing");
        return *slice;
    }

    Matrix expert_matrix(const Slice& first) {
        std::vector<Slice> slices;
        for (uint64_t e = 0; e < first.tensor->experts(); ++e) {
            slices.push_back(first);
            slices.back().expert = e;
        }
        const Matrix common = choose_layout(slices, Role::kProjection, ternarise_, [this](const Slice& slice) {
            drop_slice(checkpoint_, slice);
            step_(slice_bytes(slice));
        });
        return packed_ternary(common, ternary_);
    }

    void add_experts(int layer) {
        PackedSection section;
        section.kind = SectionKind::kExperts;
        section.name = packed_keys::expert_tensor(layer);
        section.layer = layer;
        section.gate = expert_part(layer, "ffn_gate_exps");
        section.up = expert_part(layer, "ffn_up_exps");
        section.down = expert_part(layer, "ffn_down_exps");
        section.count = section.gate.tensor->experts();
        if (section.up.tensor->experts() != section.count || section.down.tensor->experts() != section.count) {
            throw Error(ErrorCode::kFormat, checkpoint_.file() + ": layer " + std::to_string(layer) + " has " +
                                                std::to_string(section.count) + ", " +
                                                std::to_string(section.up.tensor->experts()) + " and " +
                                                std::to_string(section.down.tensor->experts()) +
                                                " experts in gate, up and down; one number expected");
        }
        section.experts =
            expert_layout(expert_matrix(section.gate), expert_matrix(section.up), expert_matrix(section.down));
        section.shape = {section.experts.bytes, section.count};
        section.bytes = section.experts.bytes * section.count;
        section.input_bytes =
            section.count * (slice_bytes(section.gate) + slice_bytes(section.up) + slice_bytes(section.down));
        add(std::move(section));
    }

    void add(PackedSection section) { plan_.sections.push_back(std::move(section)); }

    const Checkpoint& checkpoint_;
    Ternarise ternarise_;
    HeadLayout head_;
    TernaryLayout ternary_;
    bool flash_index_;
    const PlanStep& step_;
    PackedPlan plan_;
};

/// The file's bytes of a slice's codes.
std::span<const std::byte> code_bytes(const Slice& slice) {
    const SourceRow first = source_row(*slice.tensor, slice.expert, slice.row_begin);
    return {first.codes, slice_bytes(slice)};
}

}  // namespace

uint64_t slice_bytes(const Slice& slice) {
    const TypeTraits& traits = *type_traits(slice.tensor->type);
    return slice.rows * (slice.tensor->cols() / traits.block_weights * traits.block_bytes);
}

void drop_slice(const Checkpoint& checkpoint, const Slice& slice) { checkpoint.drop(code_bytes(slice)); }

PackedPlan plan_packed(const Checkpoint& checkpoint, Ternarise ternarise, HeadLayout head, TernaryLayout ternary,
                       bool flash_index, const PlanStep& step) {
    return Planner(checkpoint, ternarise, head, ternary, flash_index, step).run();
}

}  // namespace samara::formats
