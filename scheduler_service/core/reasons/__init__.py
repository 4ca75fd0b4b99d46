"""Why a job waits, runs or was moved: codes with numbers, their texts and what would change it."""
