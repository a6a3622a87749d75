"""The named configurations as the original's releases had them: for each release every name, and every option that its block
gives. Values that a block does not give have their defaults.
"""

from __future__ import annotations

from typing import Any

SIDES = {"B0": 224, "B1": 240, "B2": 260, "B3": 300, "B4": 380, "B5": 456}
HALF_SIDES = {"B0": 160, "B1": 176, "B2": 196, "B3": 204, "B4": 252, "B5": 328}
MIXUP = {"B0": 0.1, "B1": 0.1, "B2": 0.1, "B3": 0.2, "B4": 0.2, "B5": 0.2}
CUTMIX = {"B0": 1.0, "B1": 0.95, "B2": 0.9, "B3": 0.9, "B4": 0.85, "B5": 0.8}
CUTS_BN, CUTS_MK1 = "b1/2/relu b2/3/relu b3/3/relu", "b1/2/relu b2/3/relu b3/5/relu"
CUTS_16, CUTS_20 = "b1/0/relu b1/2/relu b2/3/relu", "b1/0/relu b1/2/relu b2/0/relu b2/2/relu b3/0/relu b3/3/relu"
CUTS_G1, CUTS_G16 = "block2b block4b block6c", "block2c block4c block6a"
Row = dict[str, Any]
Table = dict[str, Row]


def given(**options: Any) -> Row:
    return options


def layout(micro: int, shards: int, replicas: int, count: int) -> Row:
    return given(micro_batch_size=micro, shards=shards, replicas=replicas, gradient_accumulation_count=count)


def stages(schedule: str, cuts: str) -> Row:
    return given(pipeline=True, pipeline_schedule=schedule, pipeline_splits=tuple(cuts.split()))


RESNET50 = given(model="resnet", model_size=50, dataset="imagenet")
ON_CHIP = given(disable_variable_offloading=True)
COMPILED = given(
    normalise_input=True, stable_norm=True, enable_recomputation=True, enable_half_partials=True,
    internal_exchange_optimisation_target="balanced",
)  # fmt: skip
BASE = given(**RESNET50, **COMPILED, epochs=100.0, ckpts_per_epoch=1, logs_per_epoch=1, eight_bit_io=True)
COSINE = given(lr_schedule="cosine", optimiser="momentum", momentum=0.9, label_smoothing=0.1)
GN = BASE | COSINE | given(epochs=65.0)
BN = BASE | COSINE | ON_CHIP | stages("Grouped", CUTS_BN) | given(
    batch_norm=True, group_norm=False, precision="16.32", available_memory_proportion=(0.15,), pipeline_num_parallel=32,
    base_learning_rate_exponent=-13.0,
)  # fmt: skip
MLPERF = RESNET50 | ON_CHIP | given(
    batch_norm=True, group_norm=False, BN_decay=0.9, BN_span=2, pipeline=True, pipeline_schedule="Sequential",
    enable_recomputation=True, optimiser="momentum", momentum=0.9, weight_decay=2.5e-5, label_smoothing=0.1,
    lr_schedule="polynomial_decay_lr", abs_end_learning_rate=1e-4, warmup_epochs=5.0, normalise_input=True, eight_bit_io=True,
    fused_preprocessing=True, standard_imagenet=True, enable_half_partials=True,
    internal_exchange_optimisation_target="balanced",
    max_cross_replica_buffer_size=52428800, epochs_per_ckpt=4, logs_per_epoch=5, mlperf_logging=True,
    base_learning_rate_exponent=None,
)  # fmt: skip
BS20 = MLPERF | given(pipeline_splits=tuple(CUTS_20.split()), gather_conv_output=True)
B4 = ON_CHIP | given(
    model="efficientnet", model_size="B4", dataset="imagenet", precision="16.32", groups=4, shards=4, replicas=4, pipeline=True,
    pipeline_schedule="Grouped", optimiser="RMSprop", lr_schedule="exponential", weight_avg_exp=(0.97,), mixup_alpha=0.2,
    cutmix_lambda=0.85, cutmix_version=1, enable_recomputation=True, enable_conv_dithering=True,
    available_memory_proportion=(0.15,), internal_exchange_optimisation_target="balanced",
)  # fmt: skip
G1 = B4 | given(group_dim=1, expand_ratio=6, pipeline_splits=tuple(CUTS_G1.split()))
G16 = B4 | given(group_dim=16, expand_ratio=4, pipeline_splits=tuple(CUTS_G16.split()))
LARGE = ON_CHIP | stages("Grouped", "block4a") | given(
    model="efficientnet", model_size="B4", dataset="imagenet", precision="16.16", groups=4, group_dim=16, expand_ratio=4,
    optimiser="LARS", momentum=0.885, lars_weight_decay=2.5e-6, lr_schedule="polynomial_decay_lr", warmup_epochs=70.0,
    base_learning_rate_exponent=-9.5, label_smoothing=0.1, weight_avg_exp=(0.97,), mixup_alpha=0.2, cutmix_lambda=0.85,
    cutmix_version=1, eight_bit_io=True, standard_imagenet=True, enable_recomputation=True, enable_half_partials=True,
    enable_conv_dithering=True, available_memory_proportion=(0.4,), internal_exchange_optimisation_target="memory",
    micro_batch_size=3, shards=2,
)  # fmt: skip


def mlperf(base: Row, micro: int, replicas: int, count: int, epochs: int, rate: float, memory: float, **more: Any) -> Row:
    return base | layout(micro, 1, replicas, count) | given(
        epochs=float(epochs), abs_learning_rate=rate, available_memory_proportion=(memory,), **more
    )  # fmt: skip


def lars(micro: int, replicas: int, count: int, epochs: int, rate: float) -> Row:
    row = mlperf(BS20, micro, replicas, count, epochs, rate, 0, optimiser="LARS", weight_decay=5e-5, warmup_epochs=2.0,
                 lars_weight_decay=1e-4, internal_exchange_optimisation_target="memory")  # fmt: skip
    return row | given(available_memory_proportion=())


V21 = {
    "mk2_resnet8_test": given(model="resnet", model_size=8, dataset="cifar-10", epochs=10.0, ckpts_per_epoch=0,
                             logs_per_epoch=1, enable_half_partials=True, validation=False),
    "mk2_resnet50_base": BASE,
    "mk2_resnet50_gn_16ipus": GN | layout(8, 1, 16, 8),
    "mk2_resnet50_gn_64ipus": GN | layout(8, 1, 64, 2),
    **{f"mk2_resnet50_bn_{4 * n}ipus": BN | layout(16, 4, n, 1024 // n) for n in (4, 16, 32)},
    "mk2_resnet50_mlperf_pod16":
        mlperf(MLPERF, 16, 16, 9, 44, 4.588, 0.2, pipeline_splits=tuple(CUTS_16.split())),
    "mk2_resnet50_mlperf_pod16_bs20": mlperf(BS20, 20, 16, 6, 44, 3.824, 0.15),
    "mk2_resnet50_mlperf_pod4_bs20": mlperf(BS20, 20, 4, 24, 44, 3.824, 0.145),
    "mk2_resnet50_mlperf_pod64_bs20":
        mlperf(BS20, 20, 64, 2, 45, 5.098, 0.14, ckpt_epochs_offset=1.0, batches_per_step=100000),
    "mk2_resnext101_16ipus":
        COMPILED | COSINE | ON_CHIP | stages("Grouped", "b3/3/relu") | layout(6, 2, 8, 16)
        | given(model="resnext", model_size=101, dataset="imagenet", epochs=120.0, base_learning_rate_exponent=-11.0,
               eight_bit_io=True),
    "mk2_efficientnet_b4_16ipus_base": B4 | given(pipeline_splits=("auto",)),  # a base, which names none
    "mk2_efficientnet_b4_g1_16ipus": G1 | layout(3, 4, 4, 64),
    "mk2_efficientnet_b4_g1_64ipus": G1 | layout(3, 4, 16, 16),
    "mk2_efficientnet_b4_g16_16ipus": G16 | layout(5, 4, 4, 40),
    "mk2_efficientnet_b4_g16_64ipus": G16 | layout(5, 4, 16, 8),
    "mk2_efficientnet_b4_g16_64ipus_LARS":
        G16 | layout(5, 4, 16, 38) | given(optimiser="LARS", lr_schedule="polynomial_decay_lr", warmup_epochs=50.0,
                                          base_learning_rate_exponent=-9.5, available_memory_proportion=(0.2,)),
    "mk1_resnet50_16ipus":
        RESNET50 | COMPILED | COSINE | stages("Grouped", CUTS_MK1) | layout(4, 4, 4, 64)
        | given(epochs=65.0, available_memory_proportion=(0.6,) * 6 + (0.16, 0.2), max_cross_replica_buffer_size=10**8),
}  # fmt: skip
_POD, _B4 = "mk2_resnet50_mlperf_", "mk2_efficientnet_b4_"


def next_release(table: Table, **changes: Any) -> Table:
    """A release's table from the one before: names that are `gone` or `added`, rows that are `changed`, and what changed in
    `every` row whose name contains a word."""
    gone = changes.get("gone", "").split()
    rows = {name: row for name, row in table.items() if name not in gone} | changes.get("added", {})
    for word, more in changes.get("every", {}).items():
        rows = {name: row | more if word in name else row for name, row in rows.items()}
    return {name: row | changes.get("changed", {}).get(name, {}) for name, row in rows.items()}


V23 = next_release(
    V21, gone=f"{_POD}pod4_bs20",
    changed={f"{_POD}pod16_bs20": given(epochs=40.0), f"{_POD}pod64_bs20": given(epochs=41.0)},
    added={
        f"{_POD}pod128_bs20":
            mlperf(BS20, 16, 128, 1, 41, 4.078, 0.145, epochs_per_ckpt=1, ckpt_epochs_offset=1.0),
        f"{_POD}pod16_lars": lars(20, 16, 6, 38, 7.3),
        f"{_POD}pod64_lars": lars(20, 64, 2, 40, 9.0),
        f"{_POD}pod128_lars": lars(14, 128, 2, 44, 10.5),
    },
    every={"_mlperf_": given(internal_exchange_optimisation_target="memory")},
)  # fmt: skip
V24 = next_release(
    V23, gone=f"mk2_resnet50_gn_64ipus {_B4}g16_64ipus_LARS",
    changed={
        "mk2_resnet8_test": given(ckpts_per_epoch=1),
        f"{_POD}pod64_bs20": given(available_memory_proportion=(0.145,)),
        f"{_POD}pod128_bs20": layout(20, 1, 128, 2),
        **{f"{_B4}{name}": given(eight_bit_io=True) for name in ("16ipus_base", "g1_16ipus", "g1_64ipus")},
    },
    added={
        f"{_POD}pod16_lars": lars(20, 16, 10, 38, 10.72) | given(ckpt_epochs_offset=2.0),
        f"{_POD}pod64_lars": lars(20, 64, 3, 38, 12.15) | given(ckpt_epochs_offset=2.0),
        f"{_POD}pod128_lars": lars(20, 128, 2, 41, 12.1) | given(ckpt_epochs_offset=3.0),
        f"{_POD}pod256_lars": lars(20, 256, 2, 45, 20.2) | given(ckpt_epochs_offset=3.0),
        "efficientnet_b4_g16_large_batch_size_high_throughput": LARGE,
        **{f"{_B4}g16_{2 * n}ipus": LARGE | layout(3, 2, n, 2048 // n) for n in (8, 32, 64, 128)},
    },
    every={"_mlperf_": given(max_reduce_many_buffer_size=216), "_lars": given(lars_weight_decay=5e-5)},
)  # fmt: skip
V25 = next_release(
    V24, added={f"{_B4}g1_32ipus": G1 | layout(3, 4, 8, 32) | given(eight_bit_io=True),
                f"{_B4}g16_32ipus": LARGE | layout(3, 2, 16, 128)},
    every={"_lars": given(ckpt_epochs_offset=0.0)},
)  # fmt: skip
V26 = next_release(
    {name.removeprefix("mk2_"): row for name, row in V25.items()},
    gone="resnet50_bn_128ipus resnet50_mlperf_pod128_bs20 resnet50_mlperf_pod128_lars resnet50_mlperf_pod256_lars "
         "efficientnet_b4_g16_128ipus efficientnet_b4_g16_256ipus mk1_resnet50_16ipus",
    changed={"resnet50_mlperf_pod16_lars": given(micro_batch_size=22),
             "resnet50_mlperf_pod64_lars": given(gradient_accumulation_count=4, abs_learning_rate=14.225, epochs=40.0)},
    added={"resnet50_bn_32ipus": BN | layout(16, 4, 8, 128),
           "resnet50_mlperf_pod32_lars": V25[f"{_POD}pod16_lars"] | layout(22, 1, 32, 6) | given(abs_learning_rate=11.42)},
)  # fmt: skip
WITH_BN = LARGE | given(
    group_dim=1, expand_ratio=6, batch_norm=True, group_norm=False, BN_span=8, micro_batch_size=6, shards=1,
    pipeline_schedule="Sequential", base_learning_rate_exponent=-10.0,
)  # fmt: skip
V30 = next_release(V26, added={
    f"efficientnet_b4_g1_with_batch_norm_{name}": WITH_BN | more
    for name, more in (("base", {}), ("16ipus", layout(6, 1, 16, 64)), ("64ipus", layout(6, 1, 64, 16)))
})  # fmt: skip
V30["efficientnet_b4_g1_with_batch_norm_pod64_modification"] = given(
    model="efficientnet", replicas=64, gradient_accumulation_count=16
)
V20 = next_release(
    {name: V21[name] for name in ("mk1_resnet50_16ipus", f"{_B4}g1_16ipus", f"{_B4}g16_16ipus")},
    every={_B4: given(gradient_accumulation_count=1, cutmix_version=2)},
)
RELEASES = {"2.0": V20, "2.1": V21, "2.2": V21, "2.3": V23, "2.4": V24, "2.5": V25, "2.6": V26, "3.0": V30}


# More efficient EfficientNet: what the runs have in common, and what else some of them say

MEME_COMMON = ON_CHIP | given(
    model="efficientnet", dataset="imagenet", precision="16.32", stochastic_rounding="OFF", eight_bit_io=True,
    enable_half_partials=True, standard_imagenet=True, optimiser="RMSprop", lr_schedule="exponential", label_smoothing=0.1,
    epochs=350.0, enable_recomputation=True, internal_exchange_optimisation_target="balanced", pipeline=True,
    pipeline_schedule="Grouped", weight_avg_exp=(0.97,), cutmix_version=1,
)  # fmt: skip
MEME_EXTRAS = {
    "B2 G1-GN-Native": given(available_memory_proportion=(0.2,)),
    "B3 G1-GN-Native": given(internal_exchange_optimisation_target="memory"),
    "B4 G1-GN-Native": given(available_memory_proportion=(0.2,), enable_conv_dithering=True),
    "B5 G1-GN-Native": given(precision="16.16", offload_fp32_weight_copy=True, disable_variable_offloading=False,
                            available_memory_proportion=(0.07, 0.07) + (0.1,) * 6, enable_conv_dithering=True),
    "B2 G16-Native": given(available_memory_proportion=(0.2,)),
    "B3 G16-Native": given(internal_exchange_optimisation_target="memory"),
    "B5 G16-Native": given(available_memory_proportion=(0.2,), enable_conv_dithering=True),
    "B5 G16-LN_PN-Half": given(available_memory_proportion=(0.2,)),
}  # fmt: skip


def meme_network(size: str, kind: str) -> Row:
    row = given(model_size=size, mixup_alpha=MIXUP[size], cutmix_lambda=CUTMIX[size])
    row |= given(group_dim=1, expand_ratio=6) if kind.startswith("G1-") else given(group_dim=16, expand_ratio=4)
    row |= given(groups=1, proxy_norm=True) if "LN_PN" in kind else given(groups=4)
    return row | (given(image_size=HALF_SIDES[size]) if kind.endswith("Half") else {})
