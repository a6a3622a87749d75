"""Every command printed in the original's manuals, by release.

`COMMANDS` must be accepted unchanged; `REFUSED` cannot be and must give the reason. Two have `--release 2.1` added, because
their name meant another recipe then.

<DIR> is a folder of ImageNet's shards, <RUN> a run directory with a checkpoint.
"""

from __future__ import annotations

RN50 = "python train.py --dataset imagenet --data-dir <DIR> --model-size 50"
B0 = "python train.py --model efficientnet --model-size B0 --data-dir <DIR> --shards 4 --optimiser RMSprop --precision 16.32"
V14 = "python3 train.py --dataset imagenet --data-dir <DIR> --model resnet --model-size 50"
POPRUN = 'poprun -v --numa-aware 1 --mpi-local-args="--tag-output"'
PODS = (
    "poprun -vv --host h1,h2 --numa-aware=yes --vipu-server-host=10.1.3.101 --vipu-partition=p1 --vipu-server-timeout=300 "
    "--vipu-cluster=c1 --reset-partition=yes --update-partition=no --num-ilds=2 "
    '--mpi-global-args="--mca btl_tcp_if_include 10.1.3.0/24" --mpi-local-args="-x TF_POPLAR_FLAGS -x LD_LIBRARY_PATH"'
)
MPIRUN = "mpirun --tag-output --allow-run-as-root"
CLUSTER = """{"cluster": {"worker": ["worker0:3737", "worker1:3738"]}, "task": {"type": "worker", "index": 0}}"""
DISTRIBUTED = (
    "--model-size 50 --batch-size 4 --batches-per-step 1 --shards 4 --pipeline-depth 64 --pipeline-splits b1/2/relu "
    "b2/3/relu b3/5/relu --xla-recompute --replicas 4 --distributed --no-stochastic-rounding --base-learning-rate -11"
)
MEME = "--config-path=configs.yml --config"
FINE_TUNE = (
    "--image-size=224 --gradient-accumulation-count=4 --batch-size=8 --init-path=<RUN>/ckpt-0 --replicas=16 --shards=1 "
    "--lr-schedule=cosine --epochs=2 --train-with-valid-preprocessing --base-learning-rate=-11 --variable-filter Top"
)
EMBEDDED = "--generated-data --batches-per-step 100 --eight-bit-io"
B4_G16 = (
    "python train.py --config mk2_efficientnet_b4_g16_16ipus --identical-replica-seeding --epochs 1 --logs-per-epoch 16 "
    "--no-validation --dataset-percentage-to-use 15 --eight-bit-io --num-io-tiles 32 --prefetch-depth 3"
)

COMMANDS = {
    # SDK 1.3
    "v13-default": "python3 train.py --dataset imagenet --data-dir <DIR>",
    "v13-restore": "python restore.py --restore-path <RUN>/",
    "v13-two-ipus": f"{RN50} --batch-size 2 --xla-recompute --no-validation --shards 2 --pipeline-depth 256 "
    "--pipeline-splits b3/1/relu --available-memory-proportion 0.1",
    "v13-one-ipu": f"{RN50} --batch-size 1 --available-memory-proportion 0.1",
    "v13-eight-ipus": f"{RN50} --batch-size 2 --shards 2 --pipeline-depth 128 --pipeline-splits b3/0/relu "
    "--pipeline-schedule Grouped --available-memory-proportion 0.4 --xla-recompute --replicas 4",
    "v13-b0": f"{B0} --batch-size 4 --pipeline-depth 128 --pipeline-splits block2b block4a block6a --xla-recompute "
    "--pipeline-schedule Grouped",
    "v13-b0-groups": f"{B0} --batch-size 8 --pipeline-depth 64 --pipeline-splits block2a/SE block4a block5c --xla-recompute "
    "--pipeline-schedule Grouped --group-dim 16 --expand-ratio 4 --groups 4",
    "v13-inference": "python validation.py --model efficientnet --model-size B0 --dataset imagenet --batch-size 8 "
    "--synthetic-data --repeat 10 --batch-norm",
    "v13-distributed": f"TF_CONFIG='{CLUSTER}' python train.py --dataset imagenet --data-dir <DIR> {DISTRIBUTED}",
    "v13-mpirun": "mpirun --tag-output -H worker0,worker1 -bind-to none -map-by slot -x LD_LIBRARY_PATH -x PATH -x "
    f"TF_CONFIG='{CLUSTER}' python train.py --dataset imagenet --data-dir <DIR> {DISTRIBUTED}",
    "v13-profile": f"gc-profile -d profile -- {RN50} --gc-profile",
    "v13-profile-type": f"gc-profile -d profile -- {RN50} --gc-profile IPU_PROFILE",
    "v13-help": "python train.py --model efficientnet --help",
    "v0-sharded": f"{RN50} --shards 2",
    "v0-pipeline": f"{RN50} --shards 4 --pipeline-depth 64 --pipeline-splits b1/2/relu b2/3/relu b3/5/relu",
    # SDK 1.4 and 2.0
    "v14-two-ipus": f"{V14} --batch-size 2 --xla-recompute --no-validation --shards 2 --pipeline "
    "--gradient-accumulation-count 256 --pipeline-splits b3/1/relu --available-memory-proportion 0.1",
    "v14-b0": f"{B0} --batch-size 4 --pipeline --gradient-accumulation-count 128 --pipeline-splits block2b block4a block6a "
    "--xla-recompute --pipeline-schedule Grouped",
    "v20-rn50": f"{V14} --replicas 16 --batch-size 8 --gradient-accumulation-count 8 --epochs 65 --xla-recompute --optimiser "
    "momentum --momentum 0.90 --ckpts-per-epoch 1 --internal-exchange-optimisation-target balanced --normalise-input "
    "--stable-norm --enable-half-partials --lr-schedule cosine --label-smoothing 0.1 --eight-bit-io",
    "v20-mk1": f"{V14} --batch-size 4 --shards 4 --replicas 4 --pipeline --gradient-accumulation-count 64 --pipeline-split "
    "b1/2/relu b2/3/relu b3/5/relu --pipeline-schedule Grouped --optimiser momentum --xla-recompute --epoch 65 "
    "--available-memory-proportion 0.6 0.6 0.6 0.6 0.6 0.6 0.16 0.2 --max-cross-replica-buffer-size 100000000 "
    "--lr-schedule cosine --label-smoothing 0.1 --eight-bit-io",
    "v20-rnx101": "python train.py --model resnext --model-size 101 --dataset imagenet --data-dir <DIR> --shards 2 --replicas "
    "8 --batch-size 6 --gradient-accumulation-count 16 --epoch 120 --pipeline --pipeline-splits b3/3/relu "
    "--pipeline-schedule Grouped --optimiser momentum --lr-schedule cosine --xla-recompute --label-smoothing 0.1 "
    "--base-learning-rate -11 --no-validation",
    "v20-config": "python train.py --config mk2_resnet50_gn_16ipus --epochs 50",
    "v20-inference": "python validation.py --model efficientnet --model-size B0 --dataset imagenet --batch-size 8 "
    "--generated-data --repeat 10 --batch-norm",
    "v20-distributed": f"TF_CONFIG='{CLUSTER}' {V14} --distributed --shards 2 --pipeline --gradient-accumulation-count 16 "
    "--pipeline-splits b3/1/relu --replicas 2 --batch-size 2 --no-stochastic-rounding",
    # SDK 2.1 to 2.4
    "v21-config": "python train.py --config mk2_resnet50_gn_16ipus",
    "v21-wandb": "python train.py --config mk2_resnet8_test --dataset imagenet --data-dir <DIR> --model-size 18 --wandb",
    "v24-validation-checkpoint": "python validation.py --config mk2_resnet50_gn_16ipus --data-dir <DIR> --restore-path "
    "<RUN>/ckpt-0",
    "v24-validation-run": "python validation.py --config mk2_resnet50_gn_16ipus --data-dir <DIR> --restore-path <RUN>",
    "v21-poprun": f"{POPRUN} --num-instances 8 --num-replicas 16 --ipus-per-replica 1 python3 train.py --config "
    "mk2_resnet50_gn_16ipus --data-dir <DIR> --no-validation",
    "v21-poprun-validation": f"{POPRUN} --num-instances 8 --num-replicas 16 --ipus-per-replica 1 python3 validation.py "
    "--config mk2_resnet50_gn_16ipus --data-dir <DIR> --restore-path <RUN>",
    "v21-poprun-bn": f"{POPRUN} --num-instances 4 --num-replicas 4 --ipus-per-replica 4 python3 train.py --config "
    "mk2_resnet50_bn_16ipus --data-dir <DIR> --no-validation",
    "v21-poprun-bn-validation": f"{POPRUN} --num-instances 8 --num-replicas 16 --ipus-per-replica 1 python3 validation.py "
    "--config mk2_resnet50_bn_16ipus --data-dir <DIR> --shards 1 --restore-path <RUN>",
    "v21-pod64": f"{PODS} --num-replicas=64 --num-instances=32 --ipus-per-replica=1 python train.py --config "
    "mk2_resnet50_gn_64ipus --data-dir <DIR> --no-validation",
    "v21-pod128": f"{PODS} --num-replicas=32 --num-instances=16 --ipus-per-replica=4 python train.py --config "
    "mk2_resnet50_bn_128ipus --data-dir <DIR> --no-validation",
    "v21-mlperf": "poprun -vv --num-instances 8 --num-replicas 16 python train.py --config mk2_resnet50_mlperf_pod16_bs20 "
    "--epochs-per-sync 20 --data-dir <DIR> --no-validation",
    "v21-mlperf-validation": f"{POPRUN} --num-instances 8 --num-replicas 16 python validation.py --config "
    "mk2_resnet50_mlperf_pod16_bs20 --no-stochastic-rounding --batch-size 25 --available-memory-proportion 0.6 --data-dir "
    "<DIR> --restore-path <RUN>",
    "v21-rnx101": f"{POPRUN} --num-instances 8 --num-replicas 8 --ipus-per-replica 2 python train.py --config "
    "mk2_resnext101_16ipus --data-dir <DIR> --no-validation",
    "v21-b4-g1": f"{POPRUN} --num-instances 4 --num-replicas 4 --ipus-per-replica 4 python train.py --config "
    "mk2_efficientnet_b4_g1_16ipus --data-dir <DIR> --no-validation",
    "v21-b4-g16": f"{POPRUN} --num-instances 4 --num-replicas 4 --ipus-per-replica 4 python train.py --config "
    "mk2_efficientnet_b4_g16_16ipus --data-dir <DIR> --no-validation --release 2.1",
    "v24-b4-g16": f"{POPRUN} --num-instances 8 --num-replicas 8 --ipus-per-replica 2 python train.py --config "
    "mk2_efficientnet_b4_g16_16ipus --data-dir <DIR> --identical-replica-seeding",
    "v24-embedded": "python inference_embedded.py --model efficientnet --model-size B0 --dataset imagenet --micro-batch-size 1 "
    "--iterations 1000 --no-dataset-cache " + EMBEDDED,
    # benchmarks
    "bench-pod4": "poprun --num-instances 2 --num-replicas 4 python train.py --config mk2_resnet50_mlperf_pod4_bs20 "
    "--epochs-per-sync 20 --no-validation --epochs 1 --epochs-per-ckpt 0 --ckpts-per-epoch 0",
    "bench-pod16": "poprun --num-instances 8 --num-replicas 16 python train.py --config mk2_resnet50_mlperf_pod16_bs20 "
    "--epochs-per-sync 20 --no-validation --epochs 2 --epochs-per-ckpt 0 --ckpts-per-epoch 0",
    "bench-pod64": f"{PODS} --num-instances 16 --num-replicas 64 python train.py --config mk2_resnet50_mlperf_pod64_bs20 "
    "--epochs-per-sync 20 --no-validation --epochs 2 --logs-path . --wandb",
    "bench-rnx101": "python train.py --config mk2_resnext101_16ipus --replicas 2 --ckpts-per-epoch 0 --epochs 2 "
    "--logs-per-epoch 16 --no-validation --gradient-accumulation-count 64",
    "bench-b4-g1": "python train.py --config mk2_efficientnet_b4_g1_16ipus --epochs 1 --logs-per-epoch 16 --no-validation "
    "--replicas 1 --gradient-accumulation-count 256 --dataset-percentage-to-use 15",
    "bench-b4-g16": "python train.py --config mk2_efficientnet_b4_g16_16ipus --epochs 1 --logs-per-epoch 16 "
    "--no-validation --replicas 1 --gradient-accumulation-count 160 --dataset-percentage-to-use 15 --release 2.1",
    "bench-v24-pod4": "poprun --num-instances 2 --num-replicas 4 python train.py --config mk2_resnet50_mlperf_pod16_bs20 "
    "--gradient-accumulation-count 24 --epochs 1 --epochs-per-ckpt 0",
    "bench-v24-g16": f"{B4_G16} --replicas 1 --gradient-accumulation-count 160",
    **{f"bench-v24-g16-{n}": f"poprun --num-instances {n} --num-replicas {n} --ipus-per-replica 2 {B4_G16}" for n in (2, 8, 32)},
    "bench-v24-full": "poprun --num-instances 32 --num-replicas 32 --ipus-per-replica 2 python train.py --config "
    "mk2_efficientnet_b4_g16_64ipus --epochs 350 --seed 1 --wandb --data-dir <DIR>",
    **{f"infer-rn50-{n}": f"python validation.py --model resnet --model-size 50 --dataset imagenet --batch-size {n} "
       "--synthetic-data --repeat 10 --batch-norm --enable-half-partials --fused-preprocessing" for n in (1, 4, 16, 32, 64, 90)},
    **{f"infer-rnx101-{n}": f"python validation.py --model resnext --model-size 101 --dataset imagenet --batch-size {n} "
       "--synthetic-data --repeat 10 --batch-norm --enable-half-partials --fused-preprocessing" for n in (1, 4, 8, 16)},
    **{f"infer-b0-{n}": f"python validation.py --model efficientnet --model-size 0 --dataset imagenet --precision 16.16 "
       f"--batch-size {n} --synthetic-data --repeat 10 --batch-norm --enable-half-partials --fused-preprocessing"
       for n in (1, 8, 32)},
    **{f"infer-mpirun-{n}": f"{MPIRUN} --np {n} python validation.py --model resnet --model-size 50 --dataset imagenet "
       "--batch-size 4 --generated-data --eight-bit-io --repeat 10 --batch-norm --enable-half-partials --fused-preprocessing"
       for n in (1, 4)},
    **{f"embedded-{model}-{n}": f"{MPIRUN} --np 4 --bind-to socket python3 inference_embedded.py --model {words} --dataset "
       f"imagenet --iterations 8000 --micro-batch-size {n} {EMBEDDED} --batch-norm --enable-half-partials "
       "--fused-preprocessing --no-dataset-cache --num-inference-thread 3 --tmp-execs"
       for model, words, sizes in (("rn50", "resnet --config mk2_resnet50_base", (1, 64)),
                                   ("rnx101", "resnext --model-size 101", (1, 16)),
                                   ("b0", "efficientnet --model-size 0", (1, 42)),
                                   ("b4", "efficientnet --model-size 4", (1, 5)))
       for n in sizes},
    # more efficient EfficientNet
    "meme-train": f"python train.py {MEME} B0-G16-GN-Native_16IPU_2x8",
    "meme-poprun": "poprun --numa-aware=yes --num-replicas=8 --ipus-per-replica=2 --num-instances=8 "
    f"--only-output-from-instance 0 python train.py {MEME} B0-G16-GN-Native_16IPU_2x8 --no-validation",
    "meme-poprun-as-printed": "poprun --numa-aware=yes --num-replicas=8 --ipus-per replica=2 --num-instances=8 "
    f"--only-output-from-instance 0 python train.py {MEME} B0-G16-GN-Native_16IPU_2x8 --no-validation",
    "meme-validate": f"python validation.py {MEME} B0-G16-GN-Native_16IPU_2x8 --restore-path=<RUN>",
    "meme-poprun-validate": "poprun -v --numa-aware 1 --num-instances 8 --num-replicas 16 --ipus-per-replica 1 "
    f"--only-output-from-instance 0 python validation.py {MEME} B0-G16-GN-Native_16IPU_2x8 --restore-path=<RUN>",
    "meme-fine-tune": f"python train.py {MEME} B0-G16-GN-Half_16IPU_2x8 {FINE_TUNE}",
    "meme-fine-tune-block7": f"python train.py {MEME} B2-G16-LN_PN-Half_16IPU_4x4 {FINE_TUNE} block7 block6",
}  # fmt: skip

# calls broken as printed, and programs of another kind, with the first line of their errors
REFUSED = {
    f"{POPRUN} --num-instances 4 --num-replicas 4 --ipus-per-replica python3 train.py --config mk2_resnet50_bn_16ipus":
        "--ipus-per-replica: python3 is not a whole number",
    f"{POPRUN} --num-instances 8 --num-replicas 16 --ipus-per-replica 1 python3 --config mk2_resnet50_gn_16ipus":
        "python3 --config: the script's name is missing",
}  # fmt: skip
