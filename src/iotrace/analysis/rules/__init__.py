"""What iotrace concludes from figures: the rules, a module for each subject."""
