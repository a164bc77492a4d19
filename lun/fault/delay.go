package fault

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Delay is a distribution of times. What it gives is cut at 0 and 24 hours.
type Delay interface {
	draw(*rand.Rand) time.Duration
}

type (
	// Fixed is always the same.
	Fixed time.Duration

	// Uniform is anything from Low to High.
	Uniform struct{ Low, High time.Duration }

	// Normal has a mean and a standard deviation.
	Normal struct{ Mean, Deviation time.Duration }

	// LogNormal has a median, and the standard deviation of its logarithm: a few
	// times are much longer than the rest.
	LogNormal struct {
		Median time.Duration
		Sigma  float64
	}

	// Exponential has a mean.
	Exponential struct{ Mean time.Duration }

	// Percentiles gives times by their shares, ascending, and evenly in between.
	Percentiles []Percentile
)

// Percentile says that a share of all times, in percent, is no longer.
type Percentile struct {
	Percent float64
	Time    time.Duration
}

func (d Fixed) draw(*rand.Rand) time.Duration { return time.Duration(d) }

func (d Uniform) draw(r *rand.Rand) time.Duration {
	return d.Low + time.Duration(r.Int64N(max(0, int64(d.High-d.Low))+1))
}

func (d Normal) draw(r *rand.Rand) time.Duration {
	return cut(float64(d.Mean) + r.NormFloat64()*float64(d.Deviation))
}

func (d LogNormal) draw(r *rand.Rand) time.Duration {
	return cut(float64(d.Median) * math.Exp(r.NormFloat64()*d.Sigma))
}

func (d Exponential) draw(r *rand.Rand) time.Duration {
	return cut(r.ExpFloat64() * float64(d.Mean))
}

func (d Percentiles) draw(r *rand.Rand) time.Duration {
	p := r.Float64() * 100
	var low Percentile
	if len(d) > 0 {
		low.Time = d[0].Time
	}
	for _, high := range d {
		if p < high.Percent {
			share := (p - low.Percent) / (high.Percent - low.Percent)
			return low.Time + time.Duration(share*float64(high.Time-low.Time))
		}
		low = high
	}
	return low.Time
}

func cut(ns float64) time.Duration {
	return time.Duration(min(max(ns, 0), float64(maxTime)))
}

const wantDelay = "a time such as 5ms, or uniform:LOW,HIGH normal:MEAN,DEVIATION lognormal:MEDIAN,SIGMA exponential:MEAN percentiles:50=1ms,99=10ms,100=1s"

// parseDelay reads "5ms", "uniform:1ms,5ms" and so on.
func parseDelay(s string) (Delay, error) {
	bad := fmt.Errorf("want %s", wantDelay)
	name, rest, ok := strings.Cut(s, ":")
	if !ok {
		d, err := parseTime(s)
		return Fixed(d), err
	}
	args := strings.Split(rest, ",")
	if name == "percentiles" {
		return parsePercentiles(args)
	}
	var times []time.Duration
	for i, a := range args {
		if name == "lognormal" && i == 1 {
			break
		}
		d, err := parseTime(a)
		if err != nil {
			return nil, err
		}
		times = append(times, d)
	}
	switch {
	case name == "uniform" && len(args) == 2:
		if times[0] > times[1] {
			return nil, fmt.Errorf("want the lower time first")
		}
		return Uniform{times[0], times[1]}, nil
	case name == "normal" && len(args) == 2:
		return Normal{times[0], times[1]}, nil
	case name == "exponential" && len(args) == 1:
		return Exponential{times[0]}, nil
	case name == "lognormal" && len(args) == 2:
		sigma, err := strconv.ParseFloat(args[1], 64)
		if err != nil || !(sigma >= 0 && sigma <= 10) {
			return nil, fmt.Errorf("want a sigma from 0 to 10, such as lognormal:5ms,0.5")
		}
		return LogNormal{times[0], sigma}, nil
	}
	return nil, bad
}

func parsePercentiles(args []string) (Delay, error) {
	var list Percentiles
	for _, a := range args {
		percent, t, ok := strings.Cut(a, "=")
		p, perr := strconv.ParseFloat(percent, 64)
		d, terr := parseTime(t)
		if !ok || perr != nil || terr != nil || !(p > 0 && p <= 100) {
			return nil, fmt.Errorf("want PERCENT=TIME, such as percentiles:50=1ms,99=10ms,100=1s")
		}
		if n := len(list); n > 0 && (p <= list[n-1].Percent || d < list[n-1].Time) {
			return nil, fmt.Errorf("want percents and times in ascending order")
		}
		list = append(list, Percentile{p, d})
	}
	if list[len(list)-1].Percent != 100 {
		return nil, fmt.Errorf("want 100=TIME at the end, the longest that there is")
	}
	return list, nil
}

func parseTime(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d > maxTime {
		return 0, fmt.Errorf("want a time such as 500us, 5ms or 2s, up to 24h")
	}
	return d, nil
}
