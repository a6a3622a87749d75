"""Fine-tuning on a folder of pictures: the survey of the folder, and the stages of the training."""
