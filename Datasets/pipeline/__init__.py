"""The tf.data streams: order of the samples, decoding, augmentation, mixing, batches."""
