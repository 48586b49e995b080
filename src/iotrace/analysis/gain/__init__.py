"""What each change would gain: recorded batches replayed through a model of DataLoader."""
