"""From weights and prompts to groups of samples."""
