#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "src/formats/packed.hpp"
#include "src/formats/packed_keys.hpp"

namespace samara::formats {
namespace {

constexpr std::array<std::string_view, 7> kKinds{"embedding", "attention", "router",     "feed-forward",
                                                 "experts",   "head",      "flash index"};

std::string_view kind_of(std::string_view name) {
    if (name == "token_embd.weight") return "embedding";
    if (name == "output.weight") return "head";
    if (name.starts_with("flash.")) return "flash index";
    if (name.ends_with(".ffn_gate_inp.weight")) return "router";
    return name.find(".attn_") != std::string_view::npos ? "attention" : "feed-forward";
}

void add(std::vector<PackedLayout>& layouts, std::string_view kind, const kernels::Matrix& m, uint64_t matrices) {
    auto found = std::find_if(layouts.begin(), layouts.end(),
                              [&](const PackedLayout& l) { return l.kind == kind && l.layout == m.layout; });
    if (found == layouts.end()) {
        found = layouts.insert(found, PackedLayout{.kind = std::string(kind), .layout = m.layout});
    }
    found->matrices += matrices;
    found->weights += matrices * static_cast<uint64_t>(m.rows) * static_cast<uint64_t>(m.cols);
    found->bytes += matrices * static_cast<uint64_t>(kernels::matrix_bytes(m));
}

}  // namespace

std::vector<PackedLayout> packed_layouts(const Checkpoint& checkpoint) {
    const Metadata& meta = checkpoint.metadata();
    std::vector<PackedLayout> layouts;
    for (const std::string& name : meta.get_strings(packed_keys::kMatrixNames)) {
        add(layouts, kind_of(name), packed_matrix(checkpoint, name), 1);
    }
    const std::vector<int64_t> numbers =
        meta.has(packed_keys::kExperts) ? meta.get_ints(packed_keys::kExperts) : std::vector<int64_t>();
    for (size_t at = 0; at < numbers.size(); at += packed_keys::kExpertNumbers) {
        const PackedExperts experts = packed_experts(checkpoint, static_cast<int>(numbers[at]));
        const auto count = static_cast<uint64_t>(experts.count);
        for (const kernels::Matrix* m : {&experts.layout.gate, &experts.layout.up, &experts.layout.down}) {
            add(layouts, "experts", *m, count);
        }
    }
    const auto place = [](const PackedLayout& l) { return std::find(kKinds.begin(), kKinds.end(), l.kind); };
    std::sort(layouts.begin(), layouts.end(), [&](const PackedLayout& a, const PackedLayout& b) {
        return std::pair(place(a), a.layout) < std::pair(place(b), b.layout);
    });
    return layouts;
}

}  // namespace samara::formats
