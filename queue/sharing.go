package queue

import "time"

// How the request queues that share a set of request tags take turns.
const (
	// TagWaitQueues is the wait queues of a set of tags (SBQ_WAIT_QUEUES):
	// those who wait are spread over them.
	TagWaitQueues = 8
	maxWakeBatch  = 8 // SBQ_WAKE_BATCH
	leastFairTags = 4
	// longestTimer bounds the block layer's time-out timer (BLK_MAX_TIMEOUT).
	longestTimer = 5 * time.Second
)

// FairTags is the tags of a set that one request queue may take while so many
// queues are active (hctx_may_queue). A queue is active from its first request
// until [IdleGrace] after its last.
func FairTags(tags, active int) int {
	if tags == 1 || active == 0 {
		return tags
	}
	return max((tags+active-1)/active, leastFairTags)
}

// WakeBatch is the completions after which those who wait for a tag are woken,
// and how many of them, while so many queues are active.
func WakeBatch(tags, active int) int {
	tags = (tags + active - 1) / active
	return min(max(tags/TagWaitQueues, 1), maxWakeBatch)
}

// IdleGrace is the longest time for which a request queue without a request
// still counts as active: the time-out timer's period, with the rounding up to
// a whole second. The kernel looks when the timer is due, so it can be as good as
// none; and a queue whose last request was under way when the timer was due keeps
// its place until that request would have timed out.
func IdleGrace(requestTimeout time.Duration) time.Duration {
	return min(requestTimeout, longestTimer) + time.Second
}
