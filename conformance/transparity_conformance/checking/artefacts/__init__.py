"""The check of an artefact: a checkpoint's reference against what was made of the checkpoint."""
