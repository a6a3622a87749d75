"""Fine-tuning on a folder of pictures: what lies in the folder, and the trainings that follow one another."""
