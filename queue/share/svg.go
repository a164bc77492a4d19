package share

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// Sizes in the picture, in its own units.
const (
	cellWidth, cellHeight = 74, 46
	leftMargin            = 70
	topMargin             = 96
	lineHeight            = 16
	footLetters           = 112 // in a line of the foot
)

// WriteSVG draws the map: a box for each cell, blue where the first rule has more
// IOPS and orange where the second has, with the difference and both of Jain's
// indexes. notes stand below. The picture needs nothing but itself.
func (m *Map) WriteSVG(w io.Writer, notes []string) error {
	var foot []string
	for _, n := range notes {
		foot = append(foot, wrap(n, footLetters)...)
	}
	width := max(leftMargin+cellWidth*len(m.Depths)+20, 760)
	bottom := topMargin + cellHeight*len(m.Drives)
	height := bottom + 64 + lineHeight*len(foot)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	text := func(x, y int, attrs, s string) {
		fmt.Fprintf(&b, `<text x="%d" y="%d" %s>%s</text>`+"\n", x, y, attrs, html.EscapeString(s))
	}
	text(20, 28, `font-size="16" font-weight="bold"`, fmt.Sprintf("IOPS of %q against %q, in percent", m.Rules[1].Name, m.Rules[0].Name))
	text(20, 48, ``, fmt.Sprintf("orange: %q has more; blue: %q has more; small: Jain's index of each (1: all drives got the same)", m.Rules[1].Name, m.Rules[0].Name))
	text(leftMargin, topMargin-28, `fill="#555"`, "commands kept at each drive")
	text(12, topMargin-8, `fill="#555"`, "drives")
	for j, d := range m.Depths {
		text(leftMargin+cellWidth*j+cellWidth/2, topMargin-8, `text-anchor="middle"`, fmt.Sprint(d))
	}
	for i, n := range m.Drives {
		y := topMargin + cellHeight*i
		text(leftMargin-12, y+cellHeight/2+4, `text-anchor="end"`, fmt.Sprint(n))
		for j := range m.Depths {
			c := m.At(i, j)
			x := leftMargin + cellWidth*j
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s" stroke="#fff"/>`+"\n", x, y, cellWidth, cellHeight, color(c.Gain))
			text(x+cellWidth/2, y+20, `text-anchor="middle" font-weight="bold"`, Percent(c.Gain))
			text(x+cellWidth/2, y+37, `text-anchor="middle" font-size="10" fill="#333"`, fmt.Sprintf("%.2f, %.2f", c.Under[0].Jain, c.Under[1].Jain))
		}
	}
	for i, n := range foot {
		text(20, bottom+32+lineHeight*i, `font-size="11" fill="#333"`, n)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// Percent is a gain in words: signed, and never "-0.0".
func Percent(gain float64) string {
	if math.Abs(gain) < 0.05 {
		return "0.0"
	}
	return fmt.Sprintf("%+.1f", gain)
}

// color goes from white to orange, or to blue, at 25 percent.
func color(gain float64) string {
	depth := min(math.Abs(gain)/25, 1)
	full := [3]float64{0xf2, 0x8e, 0x2b}
	if gain < 0 {
		full = [3]float64{0x5b, 0x9b, 0xd5}
	}
	part := func(c float64) int { return int(math.Round(0xf7 + (c-0xf7)*depth)) }
	return fmt.Sprintf("#%02x%02x%02x", part(full[0]), part(full[1]), part(full[2]))
}

// wrap breaks a text into lines.
func wrap(s string, letters int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && len(line)+1+len(word) > letters {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
