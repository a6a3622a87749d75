"""Files of data and their bounds: records, headers of images, class names. Only Examples need TensorFlow."""
