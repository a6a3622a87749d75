"""The options of the Python API as types, for editors. Written by tools/option_types.py."""

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

Text = str | PathLike[str] | float


class CommonOptions(TypedDict, total=False):
    """The options that the functions have in common."""

    BN_decay: float | None
    """set the decay of the moving averages of batch-norm statistics"""
    BN_span: int | None
    """compute batch-norm statistics over groups of N replicas"""
    abs_end_learning_rate: float | None
    """set the final learning rate directly, instead of --poly-lr-end-ratio"""
    abs_learning_rate: float | None
    """set the peak learning rate directly (default for Adam and AdamW: 0.001)"""
    accumulator_format: Text | None
    """set the number format of accumulated gradients (default: the format of layer results)"""
    activation_bias: int | None
    """set the exponent bias of --activation-format (default: the format's usual bias)"""
    activation_format: Text | None
    """set the number format of input activations in convolutions and dense layers (default: from --precision)"""
    adam_beta1: float | None
    """Adam, AdamW: set the decay of the first moment"""
    adam_beta2: float | None
    """Adam, AdamW: set the decay of the second moment"""
    adam_epsilon: float | None
    """Adam, AdamW: add this constant to the square root of the second moment"""
    after: Literal['stages', 'normal-form', 'formats', 'checks', 'fuse', 'kernels'] | None
    """with --summary, print the network after this pass: operations, formats, kernels, and who rounds"""
    all_reduce_format: Literal['fp32', 'fp16', 'bf16'] | None
    """set the number format of gradients in the all-reduce between processes"""
    analyse_nans: bool | None
    """stop at the first NaN or infinity, and report its layer; values that saturate on overflow do not count"""
    augment: Literal['none', 'trivial', 'rand'] | None
    """augment each cropped training image with 1 (trivial) or 2 (rand) operations, drawn at random from 14"""
    augment_magnitude: float | None
    """set the strength of the operations of --augment rand, from 0 to 10"""
    auto_loss_scaling: Literal['back-off', 'largest'] | bool | None
    """adapt the loss scale, starting at --loss-scaling: back-off halves it on overflow and doubles it later; largest keeps the largest gradient at 1/8 of the overflow limit"""
    automatic_loss_scaling: Literal['back-off', 'largest'] | bool | None
    """adapt the loss scale, starting at --loss-scaling: back-off halves it on overflow and doubles it later; largest keeps the largest gradient at 1/8 of the overflow limit"""
    available_memory_proportion: float | Sequence[float] | None
    """use this fraction of the tile memory for temporary data: one value for all IPUs, or two per shard"""
    base_learning_rate: float | None
    """set the peak learning rate to 2^X x global batch size (default: depends on the model)"""
    base_learning_rate_exponent: float | None
    """set the peak learning rate to 2^X x global batch size (default: depends on the model)"""
    batch_norm: bool | None
    """use batch norm (default for ResNet and ResNeXt on images of CIFAR's size)"""
    batch_size: int | None
    """set the number of images in a micro-batch (default: depends on the model)"""
    batches_per_step: int | None
    """run up to N weight updates before control returns to the host, which then logs and saves"""
    best_by: Literal['accuracy', 'loss'] | None
    """choose how --keep-best-ckpt ranks validations: by top-1 accuracy, or by loss, which is less noisy if there are few images"""
    bind: Text | None
    """listen for other processes on this address of the host, or on every address with 'all' (default: the address in the cluster list)"""
    block_survival_prob: float | None
    """drop whole residual blocks at random in training; the last block is kept with this probability"""
    brief: bool | None
    """print only validations and warnings; log.txt still contains every line"""
    ckpt_all_instances: bool | None
    """save checkpoints in every process (instance), each in its own folder"""
    ckpt_epochs_offset: float | None
    """save no checkpoint before this epoch"""
    ckpts_per_epoch: int | None
    """save N checkpoints per epoch; 0 is off"""
    class_weights: Literal['balanced'] | None
    """imagefolder: weight the training loss of each image, so that every class has the same total weight"""
    clip_grad_norm: float | None
    """clip the gradients of each update to this global L2 norm, before weight decay is added; 0 is off"""
    color_jitter: float | None
    """vary brightness, contrast and saturation of training images by up to this fraction, such as 0.4; 0 is off"""
    colour_jitter: float | None
    """vary brightness, contrast and saturation of training images by up to this fraction, such as 0.4; 0 is off"""
    compile_only: bool | None
    """build the programs, print their sizes, then stop"""
    config_path: Text | None
    """read configurations from this YAML file (default: configs.yml next to the scripts)"""
    contiguous_groups: bool | None
    """form each group of neighbouring channels, instead of every N-th channel as on the IPU (N is the number of groups)"""
    convolution_groups: int | None
    """set the number of groups of the 3x3 convolutions"""
    cutmix_lambda: float | None
    """mix pairs of training images by cutmix, and keep this fraction of each image; 1 is off"""
    cutmix_version: Literal[1, 2] | None
    """choose how much of an image cutmix keeps: 1 draws the fraction at random, 2 always uses --cutmix-lambda"""
    data_dir: Text | None
    """read the data from this folder (default: the environment variable DATA_DIR)"""
    dataset: Text | None
    """set the data set: fashion-mnist (included), fashion-mnist-full, cifar-10, cifar-100, imagenet or imagefolder (default: inferred from the path of the data)"""
    dataset_benchmark: bool | None
    """measure the speed of each stage of the input pipeline, then stop"""
    dataset_cache: bool | None
    """read records from disk in every epoch instead of keeping them in host memory"""
    dataset_percentage_to_use: int | None
    """ImageNet: use only the first N per cent of the files"""
    depth_coefficient: float | None
    """multiply the number of blocks by this factor (default: depends on --model-size)"""
    depth_divisor: int | None
    """round the number of channels of every layer to a multiple of N"""
    device: Literal['auto', 'cpu', 'gpu'] | None
    """choose the processor that computes; auto uses GPUs if there are any"""
    device_iterations: int | None
    """run up to N weight updates before control returns to the host, which then logs and saves"""
    disable_variable_offloading: bool | None
    """keep optimiser state on the chip"""
    distributed: bool | None
    """train together with the other processes that TF_CONFIG lists or that Slurm's srun started"""
    dropout_rate: float | None
    """set the dropout rate before the classifier (default: depends on --model-size)"""
    dry_run: bool | None
    """print what the run would do (batches, updates, learning rate, memory), then stop"""
    eight_bit_io: bool | None
    """send images to the device as bytes and normalise them there"""
    ema: float | None
    """validate with an exponential moving average of the weights; X is the decay per update, such as 0.9999; 0 is off"""
    enable_conv_dithering: bool | None
    """spread convolutions over the tiles"""
    enable_half_partials: bool | None
    """use half-precision partial sums on an IPU; the emulation always uses FP32"""
    enable_recomputation: bool | None
    """save memory: recompute activations in the backward pass"""
    enable_recompute: bool | None
    """save memory: recompute activations in the backward pass"""
    epoch: float | None
    """train for this many passes over the data (default: depends on the model)"""
    epochs: float | None
    """train for this many passes over the data (default: depends on the model)"""
    epochs_per_ckpt: int | None
    """save a checkpoint every N epochs, instead of --ckpts-per-epoch"""
    epochs_per_sync: float | None
    """poprun: broadcast the weights of process 0 to the other processes every X epochs; 0 is off"""
    executable_cache: bool | None
    """compile programs in every call; neither read nor write the cache of compiled programs"""
    executable_cache_path: Text | None
    """keep compiled programs in this folder (default: the folder in TF_POPLAR_FLAGS, or else a folder in the user's cache)"""
    executable_cache_size: int | None
    """limit the cache of compiled programs to N megabytes; the least recently used programs are deleted"""
    expand_ratio: int | None
    """set the expansion ratio of the blocks after the first stage"""
    explain: bool | None
    """print the value of every option and where the value comes from, then stop"""
    fingerprints: bool | None
    """record a hash and the norm of every gradient and weight, in every update and process, in fingerprints.csv; cnn compare finds the first difference"""
    fit_classifier: bool | None
    """before the first update, fit the last layer by logistic regression; cross-validation chooses the penalty"""
    fix_stem_head: bool | None
    """do not scale the first convolution (32 channels), the last 1x1 convolution, and the repeats of the first and last stage"""
    fold: Text | None
    """speed up the emulation: compute N micro-batches in one pass through the network; auto chooses N"""
    fold_memory: int | None
    """let --fold auto use up to N megabytes for the activations of one pass"""
    force_unstable_norm: bool | None
    """compute the mean and variance of norms in one pass, even if the model asks for two"""
    force_weight_to_fp16: Text | Sequence[Text] | None
    """store weights in FP16 if their names contain one of these words"""
    force_weight_to_fp32: Text | Sequence[Text] | None
    """store weights in FP32 if their names contain one of these words"""
    format_for: Text | Sequence[Text] | None
    """set the number format of single layers, as LAYER=FORMAT, such as Stem=fp16 or last=fp32 (default with 8.16 and 8.32: first=fp16 last=fp16)"""
    format_scaling: Literal['fixed', 'maximum'] | bool | None
    """choose the range of the formats in convolutions and dense layers: fixed by the bias, or scaled for each tensor by a power of two that follows its largest value so far (maximum)"""
    fp32_accumulators: bool | None
    """accumulate gradients in FP32, even if they are computed in half precision"""
    fp_exceptions: bool | None
    """stop at the first invalid operation, division by zero or overflow, and report its layer and update"""
    frozen_norm_statistics: Literal['batch', 'moving'] | None
    """choose what batch norms that are not trained use: the statistics of each batch, or the moving averages (default in configurations of the original harness: batch)"""
    fused_preprocessing: bool | None
    """ImageNet: normalise images on the device, and add a fourth channel of zeros"""
    gather_conv_output: bool | None
    """combine small reductions in convolutions"""
    gc_profile: Literal['DEVICE_PROFILE', 'IPU_PROFILE', 'TILE_PROFILE', 'NO_PROFILE'] | bool | None
    """record one update as with --profile, and also write execution.json and stdout.txt (console output); files are in the run directory, or in the directory given to gc-profile -d"""
    gcl_max_broadcast_size: int | None
    """broadcast at most N bytes at once between replicas"""
    gcl_method: Text | None
    """choose the method of collective operations"""
    generated_data: bool | None
    """use random images instead of a data set; the host generates them once"""
    global_batch_size: int | None
    """set the number of images per weight update, instead of --gradient-accumulation-count"""
    gradient_accumulation_count: int | None
    """accumulate gradients over N micro-batches per replica for each weight update"""
    gradient_bias: int | None
    """set the exponent bias of --gradient-format (default: the format's usual bias)"""
    gradient_format: Text | None
    """set the number format of gradients in the backward pass of convolutions and dense layers (default: from --precision)"""
    gradient_mean_reduce_re: Text | Sequence[Text] | None
    """average gradients over replicas instead of adding them, if their names match one of these regular expressions"""
    gradient_noise: bool | None
    """estimate the gradient noise scale, above which larger batches save little, from the gradients of passes"""
    gradients_to_accumulate: int | None
    """accumulate gradients over N micro-batches per replica for each weight update"""
    group_dim: int | None
    """set the number of channels per group of the spatial convolutions; 1 makes them depthwise"""
    group_norm: bool | None
    """use group norm (default for all other networks and image sizes)"""
    groups: int | None
    """divide the channels into N groups for group norm; 1 is layer norm"""
    hadamard: bool | None
    """before rounding, apply a random Hadamard transform to the activations and gradients that give a weights' gradient, in layers where both have block formats such as nvfp4"""
    hostside_image_mixing: bool | None
    """apply mixup and cutmix on the host instead of the device"""
    hostside_norm: bool | None
    """ImageNet: normalise images on the host instead of the device"""
    identical_replica_seeding: bool | None
    """use the same random numbers on the device in all replicas"""
    image_mean: float | Sequence[float] | None
    """ImageNet: normalise pixels to (x / 255 - mean) / std; these are the three means, for R, G and B; needs --image-std"""
    image_size: int | None
    """set the width and height of the images, in pixels (default: depends on the model and the data set)"""
    image_std: float | Sequence[float] | None
    """ImageNet: set the three standard deviations, for R, G and B, in the formula of --image-mean"""
    init_path: Text | None
    """start from these weights: a checkpoint, a run directory, an .npz or .safetensors file, or efficientnet-lite0 (included)"""
    inject: Text | None
    """flip BIT (default: 30, the highest exponent bit) of one number in LAYER during UPDATE, to test checks; KIND is weight, gradient, activation or message"""
    internal_exchange_optimisation_target: Literal['balanced', 'cycles', 'memory'] | None
    """choose what the compiler optimises: memory, cycles, or a balance of memory and cycles"""
    iterations: int | None
    """train for this many weight updates, instead of --epochs; in inference_embedded.py, run this many micro-batches per thread"""
    keep_best_ckpt: bool | None
    """also keep the checkpoint with the best validation; --predict, exports and reports use this checkpoint"""
    keep_going: bool | None
    """continue if the loss is not finite or a checkpoint cannot be written"""
    label_smoothing: float | None
    """move this probability from the true class to the other classes (default: 0.1 for EfficientNet, otherwise 0)"""
    lamb_beta1: float | None
    """LAMB: set the decay of the first moment"""
    lamb_beta2: float | None
    """LAMB: set the decay of the second moment"""
    lamb_epsilon: float | None
    """LAMB: add this constant to the square root of the second moment"""
    lamb_skip_list: Text | Sequence[Text] | None
    """LAMB: apply no trust ratio and no LAMB weight decay to variables whose names contain one of these words"""
    lamb_weight_decay: float | None
    """LAMB: set the weight decay that LAMB itself applies, in addition to --weight-decay (default: 0)"""
    lars_eeta: float | None
    """LARS: set the trust coefficient"""
    lars_epsilon: float | None
    """LARS: add this constant to the denominator of the trust ratio"""
    lars_skip_list: Text | Sequence[Text] | None
    """LARS: apply no trust ratio and no LARS weight decay to variables whose names contain one of these words"""
    lars_weight_decay: float | None
    """LARS: set the weight decay that LARS itself applies, in addition to --weight-decay (default: depends on the model)"""
    latency: bool | None
    """measure the latency of validation, one batch at a time"""
    learning_rate_decay: float | None
    """multiply the learning rate by this factor at each drop"""
    learning_rate_schedule: Text | None
    """drop the learning rate at these comma-separated fractions of the run; 0.5 is the middle (default: depends on the model)"""
    list_configs: Text | bool | None
    """print the named configurations, or only those whose name or summary contains this word, then stop"""
    log_all_instances: bool | None
    """print and write the log in every process (instance), each in its own folder"""
    log_dir: Text | None
    """create run directories in this folder"""
    log_freq: int | None
    """log a line every N weight updates (default: 500 if --iterations sets the length)"""
    logs_path: Text | None
    """write the run to this directory, instead of to a generated name in --log-dir"""
    logs_per_epoch: int | None
    """log N lines per epoch (default: 16 if --epochs sets the length)"""
    loss: Literal['cross-entropy', 'bce'] | None
    """choose the loss: softmax cross-entropy, or sigmoid cross-entropy averaged over the classes (bce)"""
    loss_scaling: float | None
    """multiply the loss by this factor before the backward pass"""
    loss_scaling_period: int | None
    """double the loss scale after N updates without overflow"""
    lr_decay_rate: float | None
    """multiply the learning rate by this factor at each drop (default: depends on the model)"""
    lr_drops: int | None
    """drop the learning rate N times in the run (default: depends on the model)"""
    lr_schedule: Text | None
    """set the learning-rate schedule: stepped, cosine, exponential, polynomial_decay_lr, or another file of LR_Schedules/"""
    master_format: Text | None
    """set the number format of the weights that the optimiser updates (default: from --precision)"""
    max_ckpts_to_keep: int | None
    """keep only the N newest checkpoints (default: all)"""
    max_cross_replica_buffer_size: int | None
    """all-reduce up to N bytes of gradients at once between processes; 0 means one tensor at a time"""
    max_reduce_many_buffer_size: int | None
    """merge reductions of up to N bytes"""
    memory_check: bool | None
    """if a run needs more memory than the host has, print a warning instead of rejecting the run"""
    micro_batch_size: int | None
    """set the number of images in a micro-batch (default: depends on the model)"""
    min_remote_tensor_size: int | None
    """offload tensors of optimiser state that have at least N bytes"""
    mixup_alpha: float | None
    """mix pairs of training images by mixup, with this alpha of the Beta distribution; 0 is off"""
    mlflow: bool | None
    """send metrics to the MLflow server that MLFLOW_TRACKING_URI names; install the package mlflow first"""
    mlflow_experiment: Text | None
    """set the experiment in MLflow"""
    mlperf_logging: bool | None
    """log :::MLLOG lines for MLPerf's compliance checker, and copy them to result_<seed>.txt in the run directory"""
    model: Text | None
    """set the network: resnet, resnext, squeezenet, efficientnet, or another file of Models/"""
    model_size: Text | int | None
    """choose the size: B0..B7 (or 0..7), or cifar (default: cifar on images of CIFAR's size, otherwise B0)"""
    momentum: float | None
    """set the momentum coefficient of the optimisers momentum, RMSprop and LARS"""
    mtbf_hours: float | None
    """set the mean time between failures of a host, in hours; --safety-ckpt-minutes auto uses it"""
    name_suffix: Text | None
    """append this text to the name of the run"""
    native_arithmetic: bool | None
    """with bf16.32 and bf16.16, multiply in the processor's BF16 units; they add in another order, so results differ slightly (default: if the processor has such units)"""
    nesterov: bool | None
    """use Nesterov momentum with --optimiser momentum"""
    norm_epsilon: float | None
    """add this constant to the variance in norms"""
    normalise_input: bool | None
    """ImageNet: subtract the mean and divide by the standard deviation (default: only subtract the mean)"""
    num_classes: int | None
    """set the number of classes of ImageNet or of random images (default: from labels.txt, or 1000 without this file)"""
    num_io_tiles: int | None
    """reserve N tiles of each IPU for host input and output"""
    offload_fp32_weight_copy: bool | None
    """keep an FP32 copy of half-precision weights, and apply updates to the copy"""
    on_demand: bool | None
    """attach to devices at the start of the run, instead of when they are needed"""
    only_use_slic_vmac_16: bool | None
    """use only the SLIC and VMAC methods for convolutions"""
    optimiser: Literal['SGD', 'momentum', 'RMSprop', 'LARS', 'LAMB', 'Adam', 'AdamW'] | None
    """choose the optimiser; SGD has no momentum"""
    optimizer: Literal['SGD', 'momentum', 'RMSprop', 'LARS', 'LAMB', 'Adam', 'AdamW'] | None
    """choose the optimiser; SGD has no momentum"""
    patience: int | None
    """stop if N validations in a row do not improve the best accuracy; 0 is off"""
    pipeline: bool | None
    """run the stages as a pipeline, which works on several micro-batches at once"""
    pipeline_depth: int | None
    """accumulate gradients over N micro-batches per replica for each weight update"""
    pipeline_num_parallel: int | None
    """preprocess this many images in parallel on the host"""
    pipeline_schedule: Literal['Grouped', 'Interleaved', 'Sequential', 'GPipe', '1F1B', '1F1B-Virtual', 'ZB-H1'] | None
    """choose the order of the forward and backward passes in the pipeline"""
    pipeline_split: Text | Sequence[Text] | None
    """begin the 2nd, 3rd, ... stage at these blocks of layers (--dry-run prints their names); auto makes stages of about equal cost"""
    pipeline_splits: Text | Sequence[Text] | None
    """begin the 2nd, 3rd, ... stage at these blocks of layers (--dry-run prints their names); auto makes stages of about equal cost"""
    poly_lr_decay_power: float | None
    """set the power of the polynomial decay; 1 is linear"""
    poly_lr_decay_steps: int | None
    """reach the final learning rate after N updates (default: at the end of the run)"""
    poly_lr_early: bool | None
    """use the curve of the first releases of the original harness; its defaults are no warm-up, power 1, and rates from 0.0012 to 0.0001"""
    poly_lr_end_lr: float | None
    """set the final learning rate directly, instead of --poly-lr-end-ratio"""
    poly_lr_end_ratio: float | None
    """set the final learning rate as a fraction of the peak"""
    poly_lr_initial_lr: float | None
    """set the peak learning rate directly (default for Adam and AdamW: 0.001)"""
    poplar_sync_configuration: Text | None
    """choose the synchronisation of the devices"""
    precision: Literal['16.16', '16.32', '32.32', '8.16', '8.32', 'bf16.16', 'bf16.32', 'auto'] | None
    """set the number formats of layer results and weights, such as 16.32 for FP16 results and FP32 weights (default for own images and Fashion-MNIST: 32.32); auto takes the fastest with FP32's accuracy on this processor"""
    prefetch_depth: int | None
    """fetch N micro-batches in advance, from 1 to 255"""
    profile: Text | bool | None
    """record the timing of one update in TEXT.svg and TEXT.json (default: profile.svg and profile.json in the run directory)"""
    profile_compilation: bool | None
    """print a table of the time before the first update, and write it to compilation.json in the run directory"""
    proxy_epsilon: float | None
    """add this constant to the variance in proxy norm"""
    proxy_norm: bool | None
    """apply proxy norm after group norm; with --groups 1, after layer norm"""
    proxy_recompute: bool | None
    """keep the activations of proxy norm, instead of recomputing them in the backward pass"""
    random_erasing: float | None
    """with this probability, fill a random rectangle of a training image with grey; 0 is off"""
    release: Text | None
    """behave like this release of Graphcore's original harness, such as 2.1; --config NAME uses its values in that release"""
    replicas: int | None
    """train N data-parallel copies of the model"""
    rmsprop_base_decay_exp: float | None
    """RMSprop: set the decay to 1 - global batch size x 2^X (default: X = -14 for EfficientNet on ImageNet; otherwise the decay is 0.9)"""
    rmsprop_decay: float | None
    """RMSprop: set the decay of the mean square (default: see --rmsprop-base-decay-exp)"""
    rmsprop_epsilon: float | None
    """RMSprop: add this constant inside the square root"""
    rts: bool | None
    """shard the optimiser state over the replicas"""
    safety_ckpt_minutes: Text | None
    """save a temporary checkpoint when the last one is N minutes old; 0 is off; auto chooses the interval that loses the least time to failures"""
    saturate_on_overflow: bool | None
    """on overflow, use the largest finite number instead of NaN"""
    scheduling_algorithm: Literal['choose-best', 'clustering', 'post-order', 'look-ahead', 'shortest-path'] | None
    """choose the scheduling algorithm of the compiler"""
    se: bool | None
    """build blocks without squeeze and excitation"""
    seed: int | None
    """set the seed of all random numbers (default: a random seed, which is printed and recorded)"""
    select_ipu: Text | Sequence[Text] | None
    """choose the emulated device for training, and optionally another device for validation; gc-info -l lists the ids"""
    select_ipus: Text | Sequence[Text] | None
    """choose the emulated device for training, and optionally another device for validation; gc-info -l lists the ids"""
    sharding_exclude_filter: Text | Sequence[Text] | None
    """if the splits are automatic, never split before blocks of layers whose names contain one of these words"""
    sharding_include_filter: Text | Sequence[Text] | None
    """if the splits are automatic, split only before blocks of layers whose names contain one of these words"""
    shards: int | None
    """split each replica over N IPUs; each IPU computes one stage of the network"""
    shuffle_block: int | None
    """ImageNet: shuffle blocks of N consecutive records instead of single records, for disks that are slow to seek"""
    skip_bad_records: int | None
    """ImageNet: replace up to N unusable records by the next good record; one more stops the run"""
    slot_format: Text | None
    """set the number format of the optimiser's state, such as momentum (default: the format of the weights)"""
    stable_norm: bool | None
    """compute the mean and variance of group norm in two passes (default: depends on the model)"""
    standard_imagenet: bool | None
    """accepted for compatibility with the original harness; the standard ImageNet pipeline is always used"""
    stochastic_rounding: Literal['ON', 'ON_prng_stable', 'RI_prng_stable', 'OFF', 'update', 'all'] | bool | None
    """choose what is rounded at random: half-precision weights and optimiser state in updates (ON, update), every result (all), or nothing (OFF); with 16.32, an explicit ON means all"""
    stop_after: int | None
    """stop after this many weight updates; restore.py can resume the run"""
    summary: bool | None
    """print the size and cost of every layer, grouped by pipeline stage, then stop"""
    symmetric_input: bool | None
    """ImageNet: normalise pixels to (x - 127) / 128, as for EfficientNet-Lite"""
    symmetric_padding: bool | None
    """pad the input of stride-2 layers equally on both sides, as in PyTorch"""
    syncs_per_epoch: int | None
    """poprun: broadcast the weights of process 0 to the other processes N times per epoch; 0 is off"""
    synthetic_data: bool | None
    """use random images instead of a data set; the device generates them, so the host sends no data"""
    top_width: int | None
    """set the number of channels of the last 1x1 convolution, before width scaling; 0 removes the convolution"""
    total_batch_size: int | None
    """set the number of images per weight update, instead of --gradient-accumulation-count"""
    train_dir: Text | None
    """imagefolder: train on the images in this folder, which has one subfolder per class (default: a folder in --data-dir with a usual name, such as train)"""
    train_with_valid_preprocessing: bool | None
    """crop training images as in validation, without augmentation"""
    trial_epochs: float | None
    """after --fit-classifier, train for X epochs without a held-out fold, and end the run unless the accuracy on the fold rises; --epochs skips this trial; 0 is off"""
    use_bypass: bool | None
    """add the input of every second fire module to its output"""
    use_relu: bool | None
    """use ReLU instead of Swish"""
    use_relu6: bool | None
    """use ReLU6 instead of Swish"""
    valid_batch_size: int | None
    """set the number of images in a micro-batch of validation (default: --micro-batch-size)"""
    validation: bool | None
    """do not validate at checkpoints"""
    validation_dir: Text | None
    """imagefolder: validate on the images in this folder, which has one subfolder per class (default: a folder in --data-dir with a usual name, such as val)"""
    validation_split: float | None
    """imagefolder: use this fraction of each class for validation, the same images in every run; 0 is off"""
    variable_filter: Text | Sequence[Text] | None
    """train only variables whose names contain one of these words"""
    wandb: bool | None
    """send metrics to Weights & Biases; install the package wandb and log in first"""
    wandb_project: Text | None
    """set the project in Weights & Biases"""
    warmup_epochs: float | None
    """raise the learning rate from 0 during this many epochs; 0 means no warm-up"""
    weight_avg_N: int | Sequence[int] | None
    """after training, average the checkpoints of the last N epochs; several numbers give several averages"""
    weight_avg_exp: float | Sequence[float] | None
    """after training, average all checkpoints exponentially with this decay; several numbers give several averages"""
    weight_bias: int | None
    """set the exponent bias of --weight-format (default: the format's usual bias)"""
    weight_decay: float | None
    """set the coefficient of L2 regularisation, or of decoupled weight decay with AdamW (default: 0.01 for AdamW, 0 for Adam and LARS; otherwise depends on the model)"""
    weight_format: Text | None
    """set the number format of weights in convolutions and dense layers, such as e4m3fnuz, e5m2b16 or mxfp8_e4m3 (default: from --precision)"""
    whole_epochs: bool | None
    """round an epoch up to whole batches, so that epochs 1, 2, 3 end exactly at an update"""
    widenet: bool | None
    """CIFAR: begin with 64 channels"""
    width_coefficient: float | None
    """multiply the number of channels by this factor (default: depends on --model-size)"""
    worker_timeout: float | None
    """stop if another process does not join or answer within this many seconds"""
    xla_recompute: bool | None
    """save memory: recompute activations in the backward pass"""


class TrainOptions(CommonOptions, total=False):
    """The options of `train` and `finetune`."""

    autoresume: bool | None
    """start a run in --logs-path, or resume the run that is there; do nothing if it is complete"""
    logs: bool | None
    """write no run directory; keep checkpoints in a temporary folder"""
    numerics: int | None
    """every N updates, record the exponents and rounding errors of weights, activations and gradients in numerics.svg, numerics.jsonl and TensorBoard"""
    restore_path: Text | None
    """resume or validate the run in this directory; validation.py also accepts a checkpoint, an .npz or .safetensors file, or efficientnet-lite0 (included weights)"""
    tensorboard_images: int | None
    """show the first N training images in TensorBoard, after augmentation and mixing"""


class ValidateOptions(CommonOptions, total=False):
    """The options of `TrainedNetwork.evaluate`."""

    config: Text | None
    """use the options of this named configuration; --list-configs prints the names"""
    inference: bool | None
    """accepted for compatibility with the original harness; has no effect"""
    output: Text | None
    """write the five most probable classes of --predict to this .csv or .json file"""
    predict: Text | Sequence[Text] | None
    """classify these photos (JPEG, PNG, WebP) or folders of photos instead of validating"""
    repeat: int | None
    """validate each checkpoint N times"""
    tta: Literal['flip'] | bool | None
    """test-time augmentation: average the class probabilities of each image and its mirror image"""


class PlanOptions(TrainOptions, total=False):
    """The options of `plan`."""

    inference: bool
    """predict a validation on one IPU instead of a training"""
    processes: int
    """number of host processes that send images"""
    search: bool
    """search for the fastest plan that fits in memory"""
